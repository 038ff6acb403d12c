"""Fits, evaluation and studies of measured runs: not shipped; ``make accuracy`` writes pages and fitted data anew.

The measurements are read in place, from the folder that ``--data`` or the variable PLANNER_DATA names. Equal data give
equal bytes.
"""

from pathlib import Path

__all__ = ["ROOT", "page_with"]

ROOT = Path(__file__).parents[1]
_END = "<!-- end of what is written -->\n"


def page_with(page: str, part: str, text: str) -> str:
    """Return a page with a written part of it, which comments mark by its name, in place of the one before."""
    begin = f"<!-- written by make accuracy: {part} -->\n"
    before, marked, rest = page.partition(begin)
    _, found, after = rest.partition(_END)
    assert marked, f"the page has lost the mark of {part}"
    assert found, f"the page has lost the end of {part}"
    return f"{before}{begin}\n{text.strip()}\n\n{_END}{after}"
