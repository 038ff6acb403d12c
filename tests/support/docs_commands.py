"""Pages of the documentation, followed as a reader would: files are written, commands run in order, output compared.

How a page says what a block of it is:

- the word behind the fence: ``sh`` (commands, one a line), ``console`` (commands behind ``$``, each with what it
  prints), ``python``, ``pycon``, ``yaml``, ``json``, ``csv``, ``text`` (or nothing: what is printed or a formula; but
  where its first word is a program it holds commands);
- the name of a file: ``title="NAME"`` behind the fence, ``<!-- file: NAME -->`` above it, "put this into `NAME`" in the
  text above it, a first line ``# NAME``, or ``$ cat NAME`` in a block ``console``;
- ``<!-- exit N -->`` above a block of commands that end with this code, ``<!-- needs LIBRARY -->`` where one may be
  missing.

In what is printed, ``...`` stands for any lines, and at a line's end for its rest.
"""

import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from pytest import CaptureFixture

import planner
from planner.cli.run import run
from planner.procurement.question import load_procurement
from planner.question.source import read_source
from planner.sweep.question import load_sweep

ROOT = Path(__file__).parents[2]
TODAY = date(2026, 11, 21)  # against which the age of prices is told, where it is to be the same tomorrow
PLANNER = ("planner", ".venv/bin/planner")
# Programs that a page may call and that no test of a page runs.
OTHERS = ("make", "pip", "pipx", "uvx", "python3", "source", "sky", "kubectl")
KINDS = ("sh", "console", "python", "pycon", "yaml", "json", "csv", "text")

_BLOCK = re.compile(r'^```(\w*)(?: +title="(\S+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_NOTE = re.compile(r"<!-- (exit|needs|file:?) (\S+) -->\n(?=\Z|<!--)")
_PUT = re.compile(r"[Pp]ut\s+(?:this|these\s+\w+)\s+into\s+`([\w./-]+)`")
_FIRST = re.compile(r"# ([\w-]+\.\w+)\n")
_FILTER = re.compile(r"\s*\|\s*(?:cat|head|less)\b[^|]*$")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its page, its line there, what it is and what stands in it."""

    page: str
    line: int
    kind: str
    text: str
    name: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def first(self) -> str:
        """The first line: how tables name a block, since it moves less than its number does."""
        return self.text.partition("\n")[0].strip()

    @property
    def commands(self) -> "tuple[Command, ...]":
        """The commands in it, in their order."""
        return tuple(_commands(self))


@dataclass(frozen=True, kw_only=True)
class Command:
    """One line for a shell, and what the page says that it prints (``None``: it says nothing)."""

    text: str
    printed: str | None
    code: int = 0
    needs: str = ""

    @property
    def parts(self) -> "tuple[Call, ...]":
        """What ``&&`` joins."""
        return tuple(_call(part) for part in re.split(r"\s&&\s", self.text))


@dataclass(frozen=True, kw_only=True)
class Call:
    """One program: settings of the environment, its words, the file that its output goes to."""

    environment: Mapping[str, str]
    words: tuple[str, ...]
    into: str = ""

    @property
    def program(self) -> str:
        return self.words[0]


def pages() -> list[str]:
    """All pages whose blocks are held here: relative to the repository, in order."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [file.relative_to(ROOT).as_posix() for file in files]


def blocks(page: str) -> list[Block]:
    return blocks_of((ROOT / page).read_text(encoding="utf-8"), page)


def blocks_of(text: str, page: str = "page.md") -> list[Block]:
    found, end = [], 0
    for match in _BLOCK.finditer(text):
        before, (kind, named, body) = text[end : match.start()], match.groups()
        end = match.end()
        notes = _notes(before)
        put = _PUT.findall(before)
        first = _FIRST.match(body)
        name = named or notes.pop("file", "") or (put[-1] if put else "") or (first[1] if first else "")
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page=page, line=line, kind=kind or _kind_of(body), text=body, name=name or "", notes=notes))
    return found


def _notes(before: str) -> dict[str, str]:
    """The comments that stand directly above a block."""
    found = {}
    while note := re.search(r"<!-- (\w+):? (\S+) -->\n\Z", before):
        found[note[1]] = note[2]
        before = before[: note.start()]
    return found


def _kind_of(body: str) -> str:
    """What an unnamed block is: commands, where it begins with a program, else text."""
    return "sh" if body.split(" ", 1)[0] in (*PLANNER, *OTHERS) else "text"


def _commands(block: Block) -> Iterator[Command]:
    """Commands of a block for a shell; none of another."""
    code, needs = int(block.notes.get("exit", 0)), block.notes.get("needs", "")
    if block.kind == "sh":
        for line in block.text.replace("\\\n", " ").splitlines():
            if line.strip() and not line.startswith("#"):
                yield Command(text=line.strip(), printed=None, code=code, needs=needs)
    elif block.kind == "console":
        for part in re.split(r"^\$ ", block.text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            text, _, printed = part.partition("\n")
            yield Command(text=text.strip(), printed=printed, code=code, needs=needs)


def _call(text: str) -> Call:
    """A command, taken apart; comments and pipes into a pager are left out."""
    words = shlex.split(_FILTER.sub("", text), comments=True)
    environment = {}
    while words and re.match(r"[A-Z_]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    into = ""
    if len(words) > 2 and words[-2] == ">":
        *words, _, into = words
    return Call(environment=environment, words=tuple(words), into=into)


def missing(shown: str, printed: str) -> list[str]:
    """The lines shown that were not printed in that order; ``...`` stands for any lines, at a line's end for its rest.

    Lines that stand below each other with nothing between them were printed so.
    """
    lines, at, is_free, lost = printed.splitlines(), 0, False, []
    for line in shown.splitlines():
        if line.strip() == "...":
            is_free = True
            continue
        fits = [
            index
            for index in range(at, len(lines) if is_free else min(at + 1, len(lines)))
            if lines[index] == line or (line.endswith("...") and lines[index].startswith(line[:-3]))
        ]
        if not fits:
            lost.append(line)
            continue
        at, is_free = fits[0] + 1, False
    if at < len(lines) and not is_free and lines[at:] != [""]:
        lost.append(f"(printed, and not shown: {lines[at]})")
    return lost


def is_there(library: str) -> bool:
    """Whether a library that a block needs is installed."""
    return not library or find_spec(library) is not None


def follow(command: Command, capsys: CaptureFixture[str]) -> None:
    """Run a command in the current folder; its exit code, and what it prints, are those of the page.

    Programs of others are left out, and what follows them in the same line.
    """
    capsys.readouterr()
    for call in command.parts:
        if call.program in OTHERS:
            return
        if call.program == "cat" and command.printed and not Path(call.words[1]).exists():
            Path(call.words[1]).write_text(command.printed, encoding="utf-8")
        code = answered(call)
        out, err = capsys.readouterr()
        assert code == command.code, (command.text, code, err)
        if call.into:
            Path(call.into).write_text(out, encoding="utf-8")
        elif command.printed:
            assert missing(command.printed, out if code == 0 else err) == [], command.text


def answered(call: Call) -> int:
    """Run one program, this one without a process of its own.

    The limit of a search is in seconds of the processor: what stands on a page must not depend on what else a machine
    does meanwhile.
    """
    if call.program == "cat":
        print("".join(Path(name).read_text(encoding="utf-8") for name in call.words[1:]), end="")
        return 0
    if call.program in ("cd", "mkdir"):
        Path(call.words[1]).mkdir(exist_ok=True)
        if call.program == "cd":
            os.chdir(call.words[1])
        return 0
    assert call.program in PLANNER, f"{call.program} is not run here"
    clock = SimpleNamespace(monotonic=time.process_time)
    with _environment(call.environment), patch("planner.search.time", clock):
        return run([found for word in call.words[1:] for found in _expanded(word)])


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _expanded(word: str) -> list[str]:
    """Variables and wildcards, as a shell has them; words that hold neither stay."""
    full = os.path.expandvars(word)
    if full == word:
        return [word]
    return sorted(str(found) for found in Path(full).parent.glob(Path(full).name)) or [full]


def write(block: Block, folder: Path) -> Path:
    """Put a block into the file that it names, below the folder."""
    path = folder / block.name
    assert folder in path.resolve().parents
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, encoding="utf-8")
    return path


def read(path: Path) -> None:
    """Read a spec with the reader that it is for; ``SpecError`` says what is wrong with it."""
    keys = set(read_source(path).data)
    if "sweep" in keys:
        load_sweep(path, time_limit_s=60)
    elif "procure" in keys:
        load_procurement(path, today=TODAY)
    else:
        planner.load(path)
