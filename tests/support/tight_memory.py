"""How many questions of tight memory are drawn for each family."""

import os

TIGHT = int(os.environ.get("PLANNER_TIGHT", "30"))  # 500 were tried for docs/reliability.md
