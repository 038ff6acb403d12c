"""What commands that write a page check before they search for anything."""

from importlib.util import find_spec
from pathlib import Path

from planner.cli.output import check_outputs
from planner.errors import Fault, SpecError

__all__ = ["check_page"]

_LIBRARIES = ("plotly", "jinja2")


def check_page(path: Path | None, question: Path | None = None) -> None:
    """Refuse what ``--html`` cannot do, at once and not after a search.

    Raises
    ------
    SpecError
        If a library is missing, or the file cannot be written or is an input.
    """
    if path is None:
        return
    problem, mend = "", ""
    if missing := [name for name in _LIBRARIES if find_spec(name) is None]:
        problem = f"a page needs {' and '.join(missing)}, not installed here."
        mend = "Install them: pip install 'training-planner[report]'."
    elif path.exists() and not path.is_file() and not path.is_dir():
        problem, mend = "this is no plain file, and a page would take its place.", "Name another file."
    if problem:
        raise SpecError.of([Fault(file=str(path), field="--html", value=str(path), problem=problem, mend=mend)])
    check_outputs({"--html": path}, question)
