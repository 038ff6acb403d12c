"""Launch scripts and files: one process a device by ``torchrun``, what users write quoted, and flags read back.

Names of options: ``torch/distributed/run.py`` of PyTorch 2.13 (``--nnodes --nproc-per-node --node-rank --master-addr
--master-port --standalone``), the same since 2.0. Nothing of a file that is read back is run or expanded.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, TypeVar

from planner.errors import SpecError
from planner.frozen import frozen
from planner.shipped import shipped_text
from planner.used_machines import UsedMachines

T = TypeVar("T")

VERSION = "PyTorch 2.13"
PORT = 29500  # torchrun's own
COLLNET = 'export NCCL_COLLNET_ENABLE="${NCCL_COLLNET_ENABLE:-1}"'  # switches of the network may add up (SHARP)
_NAME = re.compile(r"[^a-z0-9]+")
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*|-u")
_MOST_LETTERS = 50  # of a name: Kubernetes allows 63, and adds to it
_MOST_BYTES = 1 << 20  # of a file that is read back: a launch script of 16,384 ranks has some KiB
_MOST_COUNT = 1 << 31
_WIDTH = 110
_UNTIL = re.compile(r'"\$NODE_RANK" -lt (\d{1,6})')


# -- writing -----------------------------------------------------------------------------------------------------------


def torchrun_lines(rows: Sequence[UsedMachines], program: str) -> tuple[str, ...]:
    """Return the commands that start a program with one process a device, one for each row of workers.

    On one machine it is complete. On several, every machine runs the line of its row, with its own ``NODE_RANK`` (0 on
    the first machine of the first row) and the ``MASTER_ADDR`` of the first; rows of different numbers of devices work,
    since each machine says its own.

    Parameters
    ----------
    rows
        Of :func:`planner.exporters.machines.used_machines`; servers are left out.
    program
        The program and its arguments, quoted for a shell; see :func:`script_words`.
    """
    workers = [row for row in rows if row.role == "worker"]
    number = sum(row.num_machines for row in workers)
    if number == 1:
        return (f"torchrun --standalone --nproc-per-node {workers[0].devices_per_machine} {program}",)
    where = f'--node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port {PORT}'
    return tuple(
        f"torchrun --nnodes {number} --nproc-per-node {row.devices_per_machine} {where} {program}" for row in workers
    )


def torchrun_script(
    rows: Sequence[UsedMachines],
    program: str,
    *,
    head: Sequence[str],
    environment: Sequence[str],
    commands: Sequence[str] = (),
) -> str:
    """Return a script that every machine runs with its own ``NODE_RANK`` and the ``MASTER_ADDR`` of the first.

    Slurm and SkyPilot start such scripts as they are: whatever else it runs, a ``launch.sh`` of any target that starts
    one process a device keeps to these two variables.

    Parameters
    ----------
    head
        Comments below the first line.
    environment
        Lines such as ``export NAME=value`` before the launcher.
    commands
        Of another launcher, in place of torchrun's: one for each row of workers.
    """
    workers = [row for row in rows if row.role == "worker"]
    number = sum(row.num_machines for row in workers)
    lines = ["#!/usr/bin/env bash", *head, "set -euo pipefail"]
    if number > 1:
        lines.append(f': "${{NODE_RANK:?0 to {number - 1}, another on every machine}}"')
        lines.append(': "${MASTER_ADDR:?the name or address of the machine with NODE_RANK 0}"')
    lines += environment
    commands = commands or torchrun_lines(workers, program)
    until = 0
    for row, command in zip(workers[:-1], commands[:-1], strict=True):
        until += row.num_machines
        if len(set(commands)) > 1:
            lines += [f'if [ "$NODE_RANK" -lt {until} ]; then  # {safe_name(row.group)}', f"  exec {command}", "fi"]
    lines.append(f"exec {commands[-1]}")
    return "\n".join(lines) + "\n"


def how_to_run(rows: Sequence[UsedMachines]) -> tuple[str, ...]:
    """Return the command that starts a ``launch.sh`` of :func:`torchrun_script`."""
    number = sum(row.num_machines for row in rows)
    if number == 1:
        return ("bash launch.sh",)
    return (f"NODE_RANK=0 MASTER_ADDR=FIRST bash launch.sh   # on every machine, NODE_RANK 0 to {number - 1}",)


def script_words(script: str | None, default: str) -> str:
    """Return the user's program with its arguments, each quoted for a shell; the default, as it is, without one.

    A ``python`` before it is left out, since launchers start Python themselves.

    Raises
    ------
    ValueError
        If quotes in the text do not close.

    >>> script_words("python train.py --name 'my net' $(reboot)", "main.py")
    "train.py --name 'my net' '$(reboot)'"
    """
    if script is None:
        return default
    words = shlex.split(script)
    while len(words) > 1 and _PYTHON.fullmatch(words[0]):
        del words[0]
    return shlex.join(words)


def safe_name(text: str | None, default: str = "training") -> str:
    """Return a name of letters, digits and hyphens, as Slurm, SkyPilot, Kubernetes and file systems take it.

    >>> safe_name("My Net; rm -rf /"), safe_name("../../x"), safe_name("--"), safe_name("7b")
    ('my-net-rm-rf', 'x', 'training', 'j-7b')
    """
    found = _NAME.sub("-", (text or default).lower()).strip("-")[:_MOST_LETTERS].strip("-") or default
    return found if found[0].isalpha() else f"j-{found}"


def comment_lines(notes: Sequence[str]) -> list[str]:
    """Return notes as comments; a line break inside of one cannot end it."""
    return [f"# {line}" for note in notes for line in note.splitlines()]


def argument_words(flags: Mapping[str, object]) -> list[str]:
    """Return flags as options of a command: a value behind its name, a switch by its name or ``no-`` and its name.

    >>> argument_words({"batch": 8, "a.fast": True, "a.slow": False, "seed": None})
    ['--batch 8', '--a.fast', '--a.no-slow']
    """
    words = []
    for name, value in flags.items():
        block, dot, last = name.rpartition(".")
        if isinstance(value, bool):
            words.append(f"--{block}{dot}{'' if value else 'no-'}{last}")
        elif value is not None:
            words.append(f"--{name} {value}")
    return words


def nested(flags: Mapping[str, object]) -> dict[str, object]:
    """Return flags as the blocks of a document: a dot in a name leads into a block; None is left out.

    >>> nested({"batch": 8, "zero.stage": 1, "zero.overlap": False, "seed": None})
    {'batch': 8, 'zero': {'stage': 1, 'overlap': False}}
    """
    document: dict[str, Any] = {}
    for name, value in flags.items():
        *blocks, last = name.split(".")
        if value is not None:
            place = document
            for block in blocks:
                place = place.setdefault(block, {})
            place[last] = value
    return document


def wrapped(words: Sequence[str]) -> str:
    """Return one command over several lines, an option and its values never apart."""
    lines, line = [], ""
    for word in words:
        if line and len(line) + len(word) > _WIDTH:
            lines.append(f"{line} \\")
            line = "   "
        line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


def shipped_program(name: str, **figures: object) -> str:
    """Return a program that ships beside this module, with a plan's figures in the place of their names (``$devices``).

    A program for which no figures are given stands as it is.
    """
    text = shipped_text("planner.exporters", f"{name}.py.txt")
    return Template(text).substitute(figures) if figures else text


def shipped_lines(name: str) -> list[str]:
    """Return the lines of a list that ships beside this module."""
    return shipped_text("planner.exporters", f"{name}.txt").splitlines()


def shipped_words(name: str) -> frozenset[str]:
    """Return the words of a list that ships beside this module: options or keys that a program has."""
    return frozenset(" ".join(shipped_lines(name)).split())


def literal(name: str, fields: Mapping[str, object]) -> str:
    """Return a mapping as Python's literal, a line for each field.

    >>> print(literal("SIZES", {"layers": 2, "kind": "dense"}), literal("NONE", {}), sep="; ")
    SIZES = {
        "layers": 2,
        "kind": "dense",
    }; NONE = {}
    """
    rows = "".join(f"    {key!r}: {value!r},\n" for key, value in fields.items())
    return f"{name} = {{\n{rows}}}".replace("'", '"') if rows else f"{name} = {{}}"


# Of latent attention: our name -> that of DeepSeek-V3's configuration, which programs took over.
LATENT = {
    "query_rank": "q_lora_rank",
    "key_value_rank": "kv_lora_rank",
    "nope_size": "qk_nope_head_dim",
    "rope_size": "qk_rope_head_dim",
    "value_size": "v_head_dim",
}


def in_their_names(part: object, names: Mapping[str, str]) -> dict[str, object]:
    """Return attributes of a part by the names that a file has for them; ``names``: each with its name there.

    >>> in_their_names(1 + 2j, {"real": "first", "imag": "second"})
    {'first': 1.0, 'second': 2.0}
    """
    return {there: getattr(part, here) for here, there in names.items()}


def in_our_names(table: Mapping[str, T], names: Mapping[str, str]) -> dict[str, T]:
    """Return the attributes that a file says by its names for them: the way back from :func:`in_their_names`.

    >>> in_our_names({"first": 1.0, "second": 2.0}, {"real": "first"})
    {'real': 1.0}
    """
    return {here: table[there] for here, there in names.items()}


# -- reading back ------------------------------------------------------------------------------------------------------


def is_headed(path: Path, text: str, *, head: str) -> bool:
    """Whether this is a YAML file whose first line says that it is of an export."""
    return path.suffix in (".yaml", ".yml") and text.startswith(f"# {head}")


@frozen(kw_only=False)
class Parsed:
    """Flags of a file that is read back: a document, whose blocks a dot leads into, or the options of a command."""

    path: Path  # of the file, for errors
    flags: Mapping[str, Any]  # by name; of an option its values as texts
    mark: str = ""  # what stands before a name in the file
    is_text: bool = False  # whether numbers are written as texts

    @classmethod
    def of_options(cls, path: Path, words: Sequence[str]) -> "Parsed":
        """Return the options of a command."""
        return cls(path, flags_of(words), mark="--", is_text=True)

    @classmethod
    def of_json(cls, path: Path, text: str) -> "Parsed":
        """Return the object that a JSON file holds; raise SpecError where it holds none."""
        problem = f"it has more than {_MOST_BYTES:,} characters." if len(text) > _MOST_BYTES else ""
        found: Any = None
        try:
            found = None if problem else json.loads(text)
        except (ValueError, RecursionError) as error:
            problem = f"it is no JSON: {error}."
        if not problem and not isinstance(found, dict):
            problem = "it is no object of JSON."
        if problem:
            raise cls(path, {}).fault(problem)
        return cls(path, found)

    def fault(
        self, problem: str, field: str = "", hint: str = "Give a file as `planner export` wrote it."
    ) -> SpecError:
        """Return the error of the file, or of one flag of it."""
        return SpecError.one(problem, hint, file=self.path, field=field)

    def value(self, name: str, default: object = None) -> Any:
        """Return a flag, of an option its first value; raise SpecError if what it stands in is no block."""
        found: Any = self.flags
        *blocks, last = [name] if name in self.flags else name.split(".")
        for block in blocks:
            found = found.get(block, {})
            if not isinstance(found, Mapping):
                raise self.fault("it is no mapping.", block)
        found = found.get(last, default)
        return next(iter(found), default) if self.is_text and isinstance(found, list) else found

    def count(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number; raise SpecError if it is none, or missing without a default."""
        found = self.value(name, default)
        number = found
        if self.is_text and isinstance(found, str) and found.isascii() and found.isdigit():
            number = int(found[: len(str(_MOST_COUNT)) + 1])
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number < _MOST_COUNT:
            problem = f"{repr(found)[:60]} is no whole number of {least} or more."
            raise self.fault("it is missing." if found is None else problem, f"{self.mark}{name}")
        return number

    def rows(self, name: str) -> list["Parsed"]:
        """Return a list of objects that is not empty; raise SpecError where there is none."""
        rows = self.value(name)
        if not isinstance(rows, list) or not rows or not all(isinstance(row, Mapping) for row in rows):
            raise self.fault("it is no list of objects.", name)
        return [Parsed(self.path, row) for row in rows]


def launched(path: Path, text: str, option: str) -> tuple[list[str], int]:
    """Return the words of the command with an option, from its launcher on, and how many processes there are in all.

    Source of the form: :func:`torchrun_script`; machines of several kinds have a command each, but for the number of
    processes the same.

    Raises
    ------
    SpecError
        If there is no such command, or its number of machines or processes is none.
    """
    commands = [words for words in commands_of(path, text) if option in words]
    if not commands:
        raise Parsed(path, {}).fault(f"no command in it has the option {option}.")
    flags = [Parsed.of_options(path, words) for words in commands]
    total = flags[-1].count("nnodes", 1)
    ends = [*(int(one) for one in _UNTIL.findall(text)), total][-len(commands) :]
    starts = [0, *ends[:-1]]
    either = ("nproc-per-node", "nproc_per_node")  # as torchrun has it
    processes = [one.count(next((name for name in either if name in one.flags), either[0])) for one in flags]
    number = sum((end - start) * each for start, end, each in zip(starts, ends, processes, strict=True))
    return commands[-1], number


def commands_of(path: Path, text: str) -> list[list[str]]:
    """Return the words of every command of a script, comments left out.

    Raises
    ------
    SpecError
        If the text is too long, or its quotes do not close.
    """
    script = Parsed(path, {})
    if len(text) > _MOST_BYTES:
        raise script.fault(f"it has {len(text):,} characters; launch scripts have less than {_MOST_BYTES:,}.")
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise script.fault(f"the quotes of {line.strip()[:60]!r} do not close ({error}).") from None
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
