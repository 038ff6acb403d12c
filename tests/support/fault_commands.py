"""Every command of ``planner``, small enough to be tried a thousand times, with each option that writes a file."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeps import BASE, batches

TARGET = "TARGET"  # stands for the file or folder that an option writes
PURCHASE: dict[str, Any] = {
    "dnn": {"zoo": "resnet50", "global_batch": 256, "dataset_samples": 100_000, "epochs": 1},
    "procure": {"deadline": "24 h", "prices": ["prices.csv"], "machines": {"at_most": 2}},
    "families": ["all_reduce"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A command with the option that writes ``TARGET``; ``inputs``: files that it reads."""

    name: str
    arguments: tuple[str, ...]
    suffix: str
    inputs: tuple[str, ...]
    is_folder: bool = False

    def words(self, target: str | Path) -> list[str]:
        """The command line that writes there."""
        return [word.replace(TARGET, str(target)) for word in self.arguments]


def _writer(name: str, line: str, suffix: str, *inputs: str, is_folder: bool = False) -> Writer:
    return Writer(name=name, arguments=tuple(line.split()), suffix=suffix, inputs=inputs, is_folder=is_folder)


WRITERS = (
    _writer("plan --out", "plan q.yaml --out TARGET", ".json", "q.yaml"),
    _writer("plan --html", "plan q.yaml --no-explain --html TARGET", ".html", "q.yaml"),
    _writer("plan --trace", "plan q.yaml --trace TARGET", ".json", "q.yaml"),
    _writer("predict --trace", "predict plan.json --trace TARGET", ".json", "plan.json"),
    _writer("predict --html", "predict plan.json --html TARGET", ".html", "plan.json"),
    _writer("procure --out", "procure buy.yaml --out TARGET", ".json", "buy.yaml", "prices.csv"),
    _writer("procure --html", "procure buy.yaml --html TARGET", ".html", "buy.yaml", "prices.csv"),
    _writer("sweep --store", "sweep s.yaml --store TARGET", ".sqlite", "s.yaml"),
    _writer("sweep --export csv", "sweep s.yaml --export TARGET", ".csv", "s.yaml"),
    _writer("sweep --export json", "sweep s.yaml --export TARGET", ".json", "s.yaml"),
    _writer("sweep --export parquet", "sweep s.yaml --export TARGET", ".parquet", "s.yaml"),
    _writer("sweep --html", "sweep s.yaml --html TARGET", ".html", "s.yaml"),
    _writer("case --html", "case adam-arithmetic --html TARGET", ".html"),
    _writer("calibrate -o", "calibrate timings.csv -o TARGET", ".yaml", "timings.csv"),
    _writer("calibrate --plot", "calibrate timings.csv --plot TARGET", ".svg", "timings.csv"),
    _writer("import -o yaml", "import layers.csv --profile-batch 8 -o TARGET", ".yaml", "layers.csv"),
    _writer("import -o json", "import layers.csv --profile-batch 8 -o TARGET", ".json", "layers.csv"),
    _writer("export --out", "export plan.json --to ddp --out TARGET", "", "plan.json", is_folder=True),
    _writer("init", "init TARGET", ".yaml"),
)
# Those of the tests that run often, which need no slow library: each way of writing a file once.
QUICK = tuple(one for one in WRITERS if one.name in ("plan --out", "sweep --export json", "export --out"))
READERS = (
    ("check", "check plan.json --json"),
    ("explain", "explain plan.json --json"),
    ("compare", "compare plan.json plan.json --json"),
    ("export", "export plan.json --to slurm --json"),
    ("case", "case adam-arithmetic --json"),
    ("show", "show devices --json"),
    ("show prices", "show prices prices.csv --json"),
    ("schema", "schema plan"),
    ("calibrate template", "calibrate --template layers"),
    ("plan measurements", "calibrate plan.json --plan-measurements --json"),
    ("import", "import layers.csv --profile-batch 8 --json"),
    ("init", "init"),
)


def write_inputs(folder: Path) -> None:
    """Write what the commands read, but for ``plan.json``, which ``planner plan q.yaml --out plan.json`` writes."""

    from planner.calibration.tables import template
    from planner.data.presets import prices_text
    from planner.importers.profiles import template as table_of_layers

    (folder / "q.yaml").write_text(json.dumps(BASE))
    (folder / "s.yaml").write_text(json.dumps({**BASE, "sweep": batches(3)}))
    (folder / "buy.yaml").write_text(json.dumps(PURCHASE))
    (folder / "timings.csv").write_text(template("collectives"))
    (folder / "layers.csv").write_text(table_of_layers())
    lines = prices_text().splitlines()
    (folder / "prices.csv").write_text("\n".join([lines[0], *(line for line in lines if "g6e" in line)]) + "\n")
