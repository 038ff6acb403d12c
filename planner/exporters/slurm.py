"""Export for Slurm: a batch script that starts another target's script once on every machine.

Options: man page of ``sbatch`` of Slurm 22.05 to 25.05. Unlike machines are components of a heterogeneous job
("Heterogeneous Job Support", slurm.schedmd.com/heterogeneous_jobs.html): one block of options each, in the order of the
ranks. A machine's rank is its place in the list of all machines, by ``SLURMD_NODENAME``, whatever a release counts in
each component and what through all of them.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError
from planner.exporters.export import Export, Job, job_name
from planner.exporters.machines import device_of, is_one_shape
from planner.exporters.programs_inside import Inner, inner_of
from planner.exporters.torchrun import comment_lines, safe_name
from planner.used_machines import UsedMachines

__all__ = ["VERSION", "degrees", "export", "recognises"]

VERSION = "Slurm 22.05 or later"
_FILE = "job.sbatch"
_HEAD = "# planner.export/1 slurm"
_COUNTS = re.compile(rf"^{re.escape(_HEAD)}: (\d{{1,9}}) devices on (\d{{1,9}}) machines", re.MULTILINE)


def export(job: Job) -> Export:
    """Return the batch script, and the files of the program that it starts.

    Raises
    ------
    SpecError
        If what was asked to train is no program that trains.
    InfeasibleError
        If the program cannot run the plan.
    """
    inner = inner_of(job, "slurm")
    notes = (*inner.export.notes, *_notes(job, inner))
    files = {_FILE: _script(job, inner, notes), **inner.export.files}
    return Export(target="slurm", version=VERSION, files=files, notes=notes, how_to_run=(f"sbatch {_FILE}",))


def _script(job: Job, inner: Inner, notes: Sequence[str]) -> str:
    """Return the batch script."""
    name = job_name(job)
    components = [_options(job, row, is_typed=not is_one_shape(inner.machines)) for row in inner.machines]
    lines = ["#!/usr/bin/env bash", f"#SBATCH --job-name={name}", "#SBATCH --output=%x-%j.out", *components[0]]
    for component in components[1:]:
        lines += ["#SBATCH hetjob", *component]
    counts = f"{_HEAD}: {inner.num_devices} devices on {inner.num_machines} machines"
    head = [f"for {VERSION}; {inner.export.target} trains: {inner.export.version}", *notes]
    lines += [counts, *comment_lines([job.plan.configuration.headline, *head])]
    lines += ["set -euo pipefail", 'cd "${SLURM_SUBMIT_DIR:-.}"  # Slurm runs a copy of this file elsewhere']
    starts = _horovod(inner) if inner.export.target == "horovod" else _start(inner)
    return "\n".join([*lines, *starts]) + "\n"


def _options(job: Job, row: UsedMachines, *, is_typed: bool) -> list[str]:
    """Return what is asked of Slurm for so many equal machines; one task on each, which starts the devices' own."""
    lines = [f"#SBATCH --nodes={row.num_machines}", "#SBATCH --ntasks-per-node=1"]
    if device_of(job, row).kind != "cpu":
        device = f"{safe_name(row.device)}:" if is_typed else ""
        lines.append(f"#SBATCH --gpus-per-node={device}{row.devices_per_machine}")
    return [*lines, "#SBATCH --exclusive", "#SBATCH --mem=0"]


def _start(inner: Inner) -> list[str]:
    """Return the lines that start a script on every machine with its rank and the address of the first."""
    number = len(inner.machines)
    if number == 1:
        nodes, groups = 'scontrol show hostnames "$SLURM_JOB_NODELIST"', ""
    else:
        lists = " ".join(f'"$SLURM_JOB_NODELIST_HET_GROUP_{index}"' for index in range(number))
        nodes = f'for one in {lists}; do scontrol show hostnames "$one"; done'
        groups = f"--het-group=0-{number - 1} "
    return [
        f'NODES="$({nodes})"',
        'export MASTER_ADDR="${NODES%%[[:space:]]*}"  # the first machine',
        # Each machine lists the nodes itself: the names of thousands are longer than a variable that a program is given
        # may be. And it binds no processor: one task would have one, and all processes of the launcher with it.
        f"srun {groups}--ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1 bash -c '",
        "  rank=0",
        f'  for one in $({nodes}); do [ "$one" = "$SLURMD_NODENAME" ] && break; rank=$((rank + 1)); done',
        "  export NODE_RANK=$rank",
        *_choice(inner),
        "'",
    ]


def _choice(inner: Inner) -> list[str]:
    """Return the line that starts the script, or the lines that choose it by the rank."""
    if len(set(inner.scripts)) == 1:
        return [f"  exec bash {inner.scripts[0]}"]
    lines, until = [], 0
    for row, script in zip(inner.machines[:-1], inner.scripts[:-1], strict=True):
        until += row.num_machines
        lines.append(f'  if [ "$NODE_RANK" -lt {until} ]; then exec bash {script}; fi')
    return [*lines, f"  exec bash {inner.scripts[-1]}"]


def _horovod(inner: Inner) -> list[str]:
    """Return the lines that start Horovod, which reaches the other machines itself."""
    parts = []
    for index, row in enumerate(inner.machines):
        suffix = f"_HET_GROUP_{index}" * (len(inner.machines) > 1)
        parts.append(f'scontrol show hostnames "$SLURM_JOB_NODELIST{suffix}" | sed s/$/:{row.devices_per_machine}/')
    return [f'export HOSTS="$({{ {"; ".join(parts)}; }} | paste -sd,)"', f"bash {inner.scripts[0]}"]


def _notes(job: Job, inner: Inner) -> list[str]:
    """Return what is left to the user's site."""
    names = ", ".join(dict.fromkeys(row.device for row in inner.machines))
    notes = []
    if is_one_shape(inner.machines):
        notes.append(
            f"machines: Slurm takes any with so many devices; the plan is for {names}: add --partition or --constraint "
            f"where the site has others, too"
        )
    else:
        notes.append(
            f"machines: the types in --gpus-per-node are the plan's names ({names}); write those of your gres.conf"
        )
    notes.append("--time, --account and --partition are your site's: none is written here")
    if job.settings.image is not None:
        notes.append("image: Slurm starts no containers by itself; with pyxis, add --container-image to srun")
    if inner.export.target == "horovod":
        notes.append("horovodrun reaches the other machines by ssh from the first one")
    return notes


# -- reading it back ---------------------------------------------------------------------------------------------------


def recognises(path: Path, text: str) -> bool:
    """Whether a file is a batch script of an export."""
    del path  # whatever its name
    return text.startswith("#!") and f"\n{_HEAD}" in text


def degrees(path: Path, text: str) -> Mapping[str, Any]:
    """Return the numbers of devices and machines in a batch script as a ``fix`` block has them.

    The other decisions stand in the files of the program that the script starts.

    Raises
    ------
    SpecError
        If the script asks Slurm for other machines than its head says.
    """
    found = _COUNTS.search(text)
    nodes = [int(one) for one in re.findall(r"^#SBATCH --nodes=(\d{1,9})$", text, re.MULTILINE)]
    gpus = re.findall(r"^#SBATCH --gpus-per-node=(?:[a-z0-9-]+:)?(\d{1,9})$", text, re.MULTILINE)
    if found is None or sum(nodes) != int(found[2]):
        raise _changed(path, f"it asks for {sum(nodes)} nodes")
    number = int(found[1])
    if gpus and (len(gpus) != len(nodes) or number != sum(n * int(g) for n, g in zip(nodes, gpus, strict=True))):
        raise _changed(path, f"--gpus-per-node is {', '.join(gpus)}")
    return {"num_devices": number, "num_machines": sum(nodes)}


def _changed(path: Path, what: str) -> SpecError:
    """Return the error of a script that was changed in one place only."""
    problem = f"{what}, and its head says otherwise."
    return SpecError.of([Fault(file=str(path), problem=problem, mend="Export the plan anew, or change both.")])
