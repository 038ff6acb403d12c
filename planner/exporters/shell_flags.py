"""Options out of a launch script, so that an export can be read back; nothing of it is run or expanded."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from planner.errors import Fault, SpecError

__all__ = ["commands_of", "flags_of", "launched", "number_of", "wrapped"]

_MOST_BYTES = 1 << 20  # a launch script of 16,384 ranks has some KiB
_WIDTH = 110
_UNTIL = re.compile(r'"\$NODE_RANK" -lt (\d{1,6})')


def wrapped(words: Sequence[str]) -> str:
    """Return one command over several lines, an option and its values never apart."""
    lines, line = [], ""
    for word in words:
        if line and len(line) + len(word) > _WIDTH:
            lines.append(f"{line} \\")
            line = "   "
        line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


def launched(path: Path, text: str, option: str) -> tuple[list[str], int]:
    """Return the words of the command with an option, from its launcher on, and how many processes there are in all.

    Source of the form: :func:`planner.exporters.torchrun.torchrun_script`; machines of several kinds have a command
    each, but for the number of processes the same.

    Raises
    ------
    SpecError
        If there is no such command, or its number of machines or processes is none.
    """
    commands = [words for words in commands_of(path, text) if option in words]
    if not commands:
        _refuse(path, f"no command in it has the option {option}.")
    flags = [flags_of(words) for words in commands]
    total = number_of(path, flags[-1], "nnodes", 1)
    ends = [*(int(one) for one in _UNTIL.findall(text)), total][-len(commands) :]
    starts = [0, *ends[:-1]]
    processes = [number_of(path, one, "nproc-per-node") for one in flags]
    number = sum((end - start) * each for start, end, each in zip(starts, ends, processes, strict=True))
    return commands[-1], number


def commands_of(path: Path, text: str) -> list[list[str]]:
    """Return the words of every command of a script, comments left out.

    Raises
    ------
    SpecError
        If the text is too long, or its quotes do not close.
    """
    if len(text) > _MOST_BYTES:
        _refuse(path, f"it has {len(text):,} characters; launch scripts have less than {_MOST_BYTES:,}.")
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            _refuse(path, f"the quotes of {line.strip()[:60]!r} do not close ({error}).")
        if words:
            found.append(words)
    return found


def flags_of(words: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of every option of a command, by its name without hyphens; none for one that stands alone.

    >>> flags_of(["torchrun", "--nnodes", "2", "train.py", "--lr=0.1", "--bf16"])
    {'nnodes': ['2', 'train.py'], 'lr': ['0.1'], 'bf16': []}
    """
    found: dict[str, list[str]] = {}
    name = None
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = [value] if equals else []
        elif name is not None:
            found[name].append(word)
    return found


def number_of(path: Path, flags: Mapping[str, Sequence[str]], name: str, default: int | None = None) -> int:
    """Return an option's number.

    Raises
    ------
    SpecError
        If it is missing and there is no default, or it is no whole number of 1 or more.
    """
    values = flags.get(name)
    if values is None and default is not None:
        return default
    text = values[0] if values else ""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 31:
        raise SpecError.of(
            [
                Fault(
                    file=str(path),
                    field=f"--{name}",
                    value=text,
                    problem=f"{text!r} is no number." if text else "it is missing.",
                    mend="Write a whole number of 1 or more.",
                )
            ]
        )
    return int(text)


def _refuse(path: Path, problem: str) -> NoReturn:
    """Refuse a file as a whole."""
    raise SpecError.of([Fault(file=str(path), problem=problem, mend="Give the file that planner export wrote.")])
