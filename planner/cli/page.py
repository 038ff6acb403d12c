"""What commands that write a page check before they search for anything."""

from importlib.util import find_spec
from pathlib import Path

from planner.errors import Fault, SpecError

__all__ = ["check_page"]

_LIBRARIES = ("plotly", "jinja2")


def check_page(path: Path | None, question: Path | None = None) -> None:
    """Refuse what ``--html`` cannot do, at once and not after a search.

    Raises
    ------
    SpecError
        If a library is missing, the file is the question itself or no plain file, or its folder is not there.
    """
    if path is None:
        return
    problem, mend = "", "Name another file."
    if missing := [name for name in _LIBRARIES if find_spec(name) is None]:
        problem = f"a page needs {' and '.join(missing)}, not installed here."
        mend = "Install them: pip install 'training-planner[report]'."
    elif path.is_dir():
        problem = "this is a folder."
    elif path.exists() and not path.is_file():
        problem = "this is no plain file, and a page would take its place."
    elif question is not None and path.exists() and path.samefile(question):
        problem = "this is the question itself, which the page would overwrite."
    elif not path.parent.is_dir():
        problem, mend = "its folder is not there.", "Make it, or name another file."
    if problem:
        raise SpecError.of([Fault(file=str(path), field="--html", value=str(path), problem=problem, mend=mend)])
