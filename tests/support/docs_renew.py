"""Write into pages what their commands print now, where reports changed; what a page leaves out stays left out.

``python tests/support/docs_renew.py docs/which_layout.md ...`` follows the blocks of each page in a temporary
folder. Lines that are found no more are told, and their sentences are for a person to mend.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path
from typing import Any

from docs_commands import OTHERS, ROOT, Command, answered, blocks, is_there, missing, write
from docs_pages import ELSEWHERE, place_of, put

__all__ = ["main", "renewed"]

LEAST_LIKE = 0.6  # of the letters of two lines, for one to stand for the other


def renewed(shown: str, printed: str) -> tuple[str, list[str]]:
    """Return what a page is to show of what is printed, and the lines of it that are printed no more."""
    lines, rows = printed.splitlines(), [row for row in shown.splitlines() if row != "..."]
    found, last = [], -1
    pairs = _aligned(rows, lines)
    for row, index in pairs:
        found += ["..."] * (index > last + 1)
        found.append(row if row.endswith("...") and lines[index].startswith(row[:-3]) else lines[index])
        last = index
    found += ["..."] * any(line.strip() for line in lines[last + 1 :])
    kept = {row for row, _ in pairs}
    return "".join(f"{line}\n" for line in found), [row for row in rows if row.strip() and row not in kept]


def _aligned(rows: Sequence[str], lines: Sequence[str]) -> list[tuple[str, int]]:
    """Return each row with the line that stands for it, in order, so that all together are as like as can be."""
    like = [[_likeness(row, line) for line in lines] for row in rows]
    best = [[0.0] * (len(lines) + 1) for _ in range(len(rows) + 1)]
    for i in reversed(range(len(rows))):
        for j in reversed(range(len(lines))):
            taken = like[i][j] + best[i + 1][j + 1] if like[i][j] else 0.0
            best[i][j] = max(best[i + 1][j], best[i][j + 1], taken)
    found, i, j = [], 0, 0
    while i < len(rows) and j < len(lines):
        if like[i][j] and best[i][j] == like[i][j] + best[i + 1][j + 1]:
            found.append((rows[i], j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return found


def _likeness(row: str, line: str) -> float:
    """Return the share of letters that two lines have in common, 0 where it is small; spaces count once."""
    ours, theirs = (re.sub(r"\s+", " ", text).strip() for text in (row, line))
    if ours == theirs:
        return 1.0 if ours else 0.05
    if ours.endswith("...") and theirs.startswith(ours[:-3]):
        return 0.99
    matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
    return matcher.ratio() if matcher.real_quick_ratio() > LEAST_LIKE < matcher.ratio() else 0.0


def _printed(command: Command) -> str:
    """Run a command and return what it prints; a file that it writes is there afterwards."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        codes = [answered(call) for call in command.parts if call.program not in OTHERS]
    if codes and codes[-1] != command.code:
        print(f"  {command.text}: exit code {codes[-1]} and not {command.code}")
    if into := command.parts[-1].into:
        Path(into).write_text(out.getvalue(), encoding="utf-8")
    return out.getvalue() if codes and codes[-1] == 0 else err.getvalue()


def _run(code: str, known: dict[str, Any]) -> str:
    """Run lines of Python and return what they print."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, known)
    return out.getvalue()


def renew(page: str) -> None:
    """Follow one page, and write it again if what it shows is printed no more."""
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    known: dict[str, Any] = {}
    put(page, Path.cwd())
    for block, after in pairwise([*blocks(page), None]):
        assert block is not None
        if place_of(block) in ELSEWHERE or not is_there(block.notes.get("needs", "")):
            continue
        if block.name and block.kind != "console":
            write(block, Path.cwd())
        elif block.kind == "python":
            printed = _run(block.text, known)
            if after is not None and after.kind == "text" and missing(after.text, printed):
                print(f"{page}:{block.line}: Python prints something else")
                text = text.replace(after.text, printed, 1)
        body = block.text
        for command in block.commands:
            printed, head = _printed(command), f"$ {command.text}\n"
            if command.printed and missing(command.printed, printed):
                now, lost = renewed(command.printed, printed)
                print(f"{page}: {command.text}", *(f"    no more: {row}" for row in lost), sep="\n")
                body = body.replace(head + command.printed, head + now, 1)
        text = text.replace(block.text, body, 1)
    path.write_text(text, encoding="utf-8")


def main(names: Sequence[str]) -> None:
    for page in [Path(name).resolve().relative_to(ROOT).as_posix() for name in names]:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            renew(page)
            os.chdir(ROOT)


if __name__ == "__main__":
    main(sys.argv[1:])
