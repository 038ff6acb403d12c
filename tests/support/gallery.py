"""The gallery, docs/gallery: its questions asked again, their reports written, its table filled in, pages drawn.

``python tests/support/gallery.py`` asks all of them and writes ``report.txt`` of each, the answers in
the tables of ``docs/gallery/README.md``, and a page for the browser of each into ``build/gallery``. Names after it ask
these alone; ``--no-pages`` draws no pages.
"""

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from unittest.mock import patch

from docs_commands import ROOT, TODAY, Block, Call, Command, answered, blocks_of

GALLERY = ROOT / "docs/gallery"
PAGES = ROOT / "build/gallery"
REPORT = "report.txt"
# Questions that take more than a second and a half of computing: tests/heavy asks them.
LONG = (
    "pipeline-of-a-cnn",
    "without-a-barrier",
    "two-generations",
    "deepseek-v3",
    "deepseek-v3-mxfp8",
    "qwen3-235b",
    "gpt-oss",
    "nemotron-h",
    "lora-on-one-node",
    "rent-before-a-deadline",
    "fastest-for-a-budget",
    "buy-or-rent",
)
# What has a page, and how its explanation, which takes long, is left out.
_PAGED = {"plan": ("--no-explain",), "procure": (), "sweep": ()}
_ROW = re.compile(r"^\| \[[^]]*\]\(([\w-]+)/README\.md\) \|.*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A question of the gallery: its folder, its title, what it says and the commands that answer it."""

    folder: Path
    title: str
    text: str
    commands: tuple[Command, ...]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def report(self) -> str:
        return (self.folder / REPORT).read_text(encoding="utf-8")

    @property
    def inputs(self) -> list[Path]:
        """The files that a reader needs to ask it."""
        return [file for file in sorted(self.folder.iterdir()) if file.name not in ("README.md", REPORT)]


def names() -> list[str]:
    """The folders of the gallery, in the order of its tables."""
    return _ROW.findall((GALLERY / "README.md").read_text(encoding="utf-8"))


def entry(name: str) -> Entry:
    folder = GALLERY / name
    text = (folder / "README.md").read_text(encoding="utf-8")
    title = text.partition("\n")[0].removeprefix("# ")
    found: list[Block] = blocks_of(text, f"docs/gallery/{name}/README.md")
    return Entry(
        folder=folder, title=title, text=text, commands=tuple(one for block in found for one in block.commands)
    )


class _Today(datetime):
    """The clock of the gallery: ages of prices are told as of one day."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "_Today":
        return cls(TODAY.year, TODAY.month, TODAY.day, tzinfo=tz or UTC)


@contextlib.contextmanager
def copied(one: Entry) -> Iterator[Path]:
    """Work in a copy of a question's files, on the gallery's day, without a terminal."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name, patch("planner.api.datetime", _Today):
        for file in one.inputs:
            shutil.copy(file, name)
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)


def printed(one: Entry, page: Path | None = None) -> str:
    """What the commands of a question print now, each below its own line; ``page`` is where its page goes to."""
    parts = []
    with copied(one):
        for command in one.commands:
            parts.append(f"$ {command.text}\n\n{_printed(command, page)}")
    return "\n".join(parts)


def _printed(command: Command, page: Path | None) -> str:
    (call,) = command.parts
    if page is not None and call.words[1] in _PAGED:
        options = ("--html", str(page), *_PAGED[call.words[1]])
        call = Call(environment=call.environment, words=(*call.words, *options))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = answered(call)
    if code != command.code:
        raise RuntimeError(f"{command.text}: exit code {code}, not {command.code}: {err.getvalue()}")
    return out.getvalue() if code == 0 else err.getvalue()


def told(report: str) -> tuple[str, str, str]:
    """The answer of a report in one line, what is proven of it, and the family."""
    lines = [line for line in report.splitlines() if line and not line.startswith("$ ")]
    if lines[0].startswith("No plan fits"):
        (words,) = re.findall(r"No plan fits: (these \d+ constraints conflict)", lines[0])
        return "no plan fits", f"proven: {words}", "all that are allowed"
    if questions := re.match(r"(\d+ questions): (.*)", lines[0]):
        best = next(line.split() for line in lines if re.match(r"\s+\d+ .* optimal ", line))
        return questions[1], questions[2], best[best.index("optimal") + 1]
    return _answer(lines)


def _answer(lines: Sequence[str]) -> tuple[str, str, str]:
    """The first two lines of a plan, or of a purchase, in the words of a table."""
    first, second = lines[0], lines[1]
    plain = re.sub(r' within the searched space \(see "Search space"\)', "", second).rstrip(".")
    proof = plain.split(";")[0].split(", on ")[0]
    if gap := re.search(r" \(gap [\d.]+ %\)", second):
        proof += gap[0]
    proof = proof[0].lower() + proof[1:]
    if "Train by" not in lines:
        answer = first.partition(": ")[2]
        return answer, proof, answer.split(" ")[0]
    ways = lines[lines.index("Train by") + 1 :]
    families = re.findall(r"\b(\w+) on \d+ devices?\b", "\n".join(ways[:8]))
    return first[0].lower() + first[1:], proof, ", ".join(dict.fromkeys(families))


def with_answers(text: str) -> str:
    """The page of the gallery with the answers of its reports in its tables."""

    def row(found: re.Match[str]) -> str:
        one = entry(found[1])
        return f"| [{one.title}]({one.name}/README.md) | " + " | ".join(told(one.report)) + " |"

    return _ROW.sub(row, text)


def main(arguments: Sequence[str]) -> None:
    """Ask, write and draw."""
    asked = [name for name in arguments if not name.startswith("-")] or names()
    if "--no-pages" not in arguments:
        PAGES.mkdir(parents=True, exist_ok=True)
    for name in asked:
        one = entry(name)
        page = None if "--no-pages" in arguments else PAGES / f"{name}.html"
        (one.folder / REPORT).write_text(printed(one, page), encoding="utf-8")
        print(name, flush=True)
    page_of_all = GALLERY / "README.md"
    page_of_all.write_text(with_answers(page_of_all.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
