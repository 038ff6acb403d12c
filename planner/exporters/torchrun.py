"""The lines of ``torchrun`` that start one process a device, and the quoting of what users write.

Names of options: ``torch/distributed/run.py`` of PyTorch 2.13 (``--nnodes --nproc-per-node --node-rank --master-addr
--master-port --standalone``), the same since 2.0.
"""

import re
import shlex
from collections.abc import Sequence

from planner.used_machines import UsedMachines

__all__ = [
    "PORT",
    "VERSION",
    "comment_lines",
    "safe_name",
    "script_words",
    "shell_words",
    "torchrun_lines",
    "torchrun_script",
]

VERSION = "PyTorch 2.13"
PORT = 29500  # torchrun's own
_NAME = re.compile(r"[^a-z0-9]+")
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*|-u")
_MOST_LETTERS = 50  # of a name: Kubernetes allows 63, and adds to it


def torchrun_lines(rows: Sequence[UsedMachines], program: str, *, port: int = PORT) -> tuple[str, ...]:
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
    where = f'--node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port {port}'
    return tuple(
        f"torchrun --nnodes {number} --nproc-per-node {row.devices_per_machine} {where} {program}" for row in workers
    )


def torchrun_script(
    rows: Sequence[UsedMachines], program: str, *, head: Sequence[str] = (), environment: Sequence[str] = ()
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
    """
    workers = [row for row in rows if row.role == "worker"]
    number = sum(row.num_machines for row in workers)
    lines = ["#!/usr/bin/env bash", *head, "set -euo pipefail"]
    if number > 1:
        lines.append(f': "${{NODE_RANK:?0 to {number - 1}, another on every machine}}"')
        lines.append(': "${MASTER_ADDR:?the name or address of the machine with NODE_RANK 0}"')
    lines += environment
    commands = torchrun_lines(workers, program)
    until = 0
    for row, command in zip(workers[:-1], commands[:-1], strict=True):
        until += row.num_machines
        if len(set(commands)) > 1:
            lines += [f'if [ "$NODE_RANK" -lt {until} ]; then  # {safe_name(row.group)}', f"  exec {command}", "fi"]
    lines.append(f"exec {commands[-1]}")
    return "\n".join(lines) + "\n"


def script_words(script: str | None, default: str) -> str:
    """Return the user's program with its arguments, each quoted for a shell; the default, as it is, without one.

    A ``python`` before it is left out, since launchers start Python themselves.

    Raises
    ------
    ValueError
        If quotes in the text do not close.
    """
    if script is None:
        return default
    words = shlex.split(script)
    while len(words) > 1 and _PYTHON.fullmatch(words[0]):
        del words[0]
    return shlex.join(words)


def shell_words(text: str) -> str:
    """Return words that a user wrote as a shell takes them, none of them expanded or run.

    >>> shell_words("train.py --name 'my net' $(reboot)")
    "train.py --name 'my net' '$(reboot)'"
    """
    return shlex.join(shlex.split(text))


def safe_name(text: str | None, default: str = "training") -> str:
    """Return a name of letters, digits and hyphens, as Slurm, SkyPilot, Kubernetes and file systems take it.

    >>> safe_name("My Net; rm -rf /"), safe_name("../../x"), safe_name("--"), safe_name("7b")
    ('my-net-rm-rf', 'x', 'training', 'j-7b')
    """
    found = _NAME.sub("-", (text or default).lower()).strip("-")[:_MOST_LETTERS].strip("-") or default
    return found if found[0].isalpha() else f"j-{found}"


def comment_lines(notes: Sequence[str], mark: str = "# ") -> list[str]:
    """Return notes as comments; a line break inside of one cannot end it."""
    return [f"{mark}{line}" for note in notes for line in note.splitlines()]
