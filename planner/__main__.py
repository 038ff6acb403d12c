"""The command line's way in: ``planner`` and ``python -m planner``."""

import sys

from planner.cli.run import run

__all__ = ["main"]


def main() -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
