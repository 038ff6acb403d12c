"""Slurm and SkyPilot, which start another target's script once on every machine.

**Slurm.** Options: man page of ``sbatch`` of Slurm 22.05 to 25.05. Unlike machines are components of a heterogeneous
job ("Heterogeneous Job Support", slurm.schedmd.com/heterogeneous_jobs.html): one block of options each, in the order of
the ranks. A machine's rank is its place in the list of all machines, by ``SLURMD_NODENAME``, whatever a release counts
in each component and what through all of them.

**SkyPilot** rents equal machines. Keys: ``sky/utils/schemas.py`` of SkyPilot 0.14.1. Names of accelerators:
``catalogs/v8/common/accelerators.csv`` of github.com/skypilot-org/skypilot-catalog at commit 001ca54. Variables of a
run: "Distributed Multi-Node Jobs", docs.skypilot.co.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.exporters.export import Export, Exporter, Job, job_name, refused
from planner.exporters.kubernetes import documents_of, yaml_text
from planner.exporters.machines import Inner, device_of, inner_of, is_one_shape, machine_words, num_devices
from planner.exporters.scripts import Parsed, comment_lines, safe_name
from planner.used_machines import UsedMachines

# -- Slurm -------------------------------------------------------------------------------------------------------------

_SLURM = "Slurm 22.05 or later"
_BATCH = "job.sbatch"
_HEAD = "# planner.export/1 slurm"
_COUNTS = re.compile(rf"^{re.escape(_HEAD)}: (\d{{1,9}}) devices on (\d{{1,9}}) machines", re.MULTILINE)


def _export_slurm(job: Job) -> Export:
    """Return the batch script, and the files of the program that it starts."""
    inner = inner_of(job, "slurm")
    program, machines, is_alike = inner.export, inner.machines, is_one_shape(inner.machines)
    names = ", ".join(dict.fromkeys(row.device for row in machines))
    notes = [*program.notes]
    if is_alike:
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
    if program.target == "horovod":
        notes.append("horovodrun reaches the other machines by ssh from the first one")
    lines = ["#!/usr/bin/env bash", f"#SBATCH --job-name={job_name(job)}", "#SBATCH --output=%x-%j.out"]
    for index, row in enumerate(machines):  # one task on each machine, which starts the devices' own
        lines += ["#SBATCH hetjob"] if index else []
        lines += [f"#SBATCH --nodes={row.num_machines}", "#SBATCH --ntasks-per-node=1"]
        if device_of(job, row).kind != "cpu":
            device = "" if is_alike else f"{safe_name(row.device)}:"
            lines.append(f"#SBATCH --gpus-per-node={device}{row.devices_per_machine}")
        lines += ["#SBATCH --exclusive", "#SBATCH --mem=0"]
    lines += [
        f"{_HEAD}: {num_devices(machines)} devices on {inner.num_machines} machines",
        *comment_lines([job.plan.configuration.headline, f"for {_SLURM}; {program.target} trains: {program.version}"]),
        *comment_lines(notes),
        "set -euo pipefail",
        'cd "${SLURM_SUBMIT_DIR:-.}"  # Slurm runs a copy of this file elsewhere',
        *(_horovod_lines(inner) if program.target == "horovod" else _start_lines(inner)),
    ]
    files = {_BATCH: "\n".join(lines) + "\n", **program.files}
    return Export(target="slurm", version=_SLURM, files=files, notes=tuple(notes), how_to_run=(f"sbatch {_BATCH}",))


def _start_lines(inner: Inner) -> list[str]:
    """Return the lines that start a script on every machine with its rank and the address of the first."""
    number = len(inner.machines)
    if number == 1:
        nodes, groups = 'scontrol show hostnames "$SLURM_JOB_NODELIST"', ""
    else:
        lists = " ".join(f'"$SLURM_JOB_NODELIST_HET_GROUP_{index}"' for index in range(number))
        nodes = f'for one in {lists}; do scontrol show hostnames "$one"; done'
        groups = f"--het-group=0-{number - 1} "
    lines = [
        f'NODES="$({nodes})"',
        'export MASTER_ADDR="${NODES%%[[:space:]]*}"  # the first machine',
        # Each machine lists the nodes itself: the names of thousands are longer than a variable that a program is given
        # may be. And it binds no processor: one task would have one, and all processes of the launcher with it.
        f"srun {groups}--ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1 bash -c '",
        "  rank=0",
        f'  for one in $({nodes}); do [ "$one" = "$SLURMD_NODENAME" ] && break; rank=$((rank + 1)); done',
        "  export NODE_RANK=$rank",
    ]
    until = 0
    for row, script in zip(inner.machines[:-1], inner.scripts[:-1], strict=True):
        until += row.num_machines
        if len(set(inner.scripts)) > 1:
            lines.append(f'  if [ "$NODE_RANK" -lt {until} ]; then exec bash {script}; fi')
    return [*lines, f"  exec bash {inner.scripts[-1]}", "'"]


def _horovod_lines(inner: Inner) -> list[str]:
    """Return the lines that start Horovod, which reaches the other machines itself."""
    parts = []
    for index, row in enumerate(inner.machines):
        suffix = f"_HET_GROUP_{index}" * (len(inner.machines) > 1)
        parts.append(f'scontrol show hostnames "$SLURM_JOB_NODELIST{suffix}" | sed s/$/:{row.devices_per_machine}/')
    return [f'export HOSTS="$({{ {"; ".join(parts)}; }} | paste -sd,)"', f"bash {inner.scripts[0]}"]


def _recognises_slurm(path: Path, text: str) -> bool:
    """Whether a file is a batch script of an export, whatever its name."""
    return text.startswith("#!") and f"\n{_HEAD}" in text


def _slurm_degrees(path: Path, text: str) -> Mapping[str, object]:
    """Return the numbers of devices and machines; the other decisions stand in the files of the program.

    Raises
    ------
    SpecError
        If the script asks Slurm for other machines than its head says.
    """
    counts = _COUNTS.search(text)
    nodes = [int(number) for number in re.findall(r"^#SBATCH --nodes=(\d{1,9})$", text, re.MULTILINE)]
    gpus = re.findall(r"^#SBATCH --gpus-per-node=(?:[a-z0-9-]+:)?(\d{1,9})$", text, re.MULTILINE)
    changed = ""
    if counts is None or sum(nodes) != int(counts[2]):
        changed = f"it asks for {sum(nodes)} nodes"
    elif gpus and (
        len(gpus) != len(nodes) or int(counts[1]) != sum(n * int(g) for n, g in zip(nodes, gpus, strict=True))
    ):
        changed = f"--gpus-per-node is {', '.join(gpus)}"
    if counts is None or changed:
        raise Parsed(path, {}).fault(
            f"{changed}, and its head says otherwise.", hint="Export the plan anew, or change both."
        )
    return {"num_devices": int(counts[1]), "num_machines": sum(nodes)}


# -- SkyPilot ----------------------------------------------------------------------------------------------------------

_SKYPILOT = "SkyPilot 0.14.1"
_TASK = "task.yaml"
_CLOUDS = ("aws", "azure", "gcp", "lambda")  # providers of price lists that SkyPilot knows by the same name
_CATALOGUE = """
    k80=K80 p100-sxm2=P100 v100-sxm2-16g=V100 v100-sxm2-32g=V100-32GB v100-pcie-16gb=V100 t4=T4 rtx-3090=RTX3090
    rtx-4090=RTX4090 quadro-rtx-6000=RTX6000 rtx-a6000=RTXA6000 a10=A10 a10g=A10G l4=L4 a100-pcie-40gb=A100
    a100-sxm4-40gb=A100 a100-pcie-80gb=A100-80GB a100-sxm4-80gb=A100-80GB l40s=L40S h100-pcie=H100 h100-nvl=H100-NVL
    h100-sxm=H100 h200-sxm=H200 gh200-96gb=GH200 b200-sxm=B200 mi300x=MI300X
"""
_NAMES: Mapping[str, str] = dict(pair.split("=") for pair in _CATALOGUE.split())
_SETUPS: Mapping[str, str] = {"ddp": "python -m pip install 'torch>=2.13'"}
_RUN = (
    'export NODE_RANK="$SKYPILOT_NODE_RANK" MASTER_ADDR="$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"\n'
    "cd ~/sky_workdir  # what lies beside the task\n"
)


def _export_skypilot(job: Job) -> Export:
    """Return the task, and the files of the program that it starts."""
    inner = inner_of(job, "skypilot")
    program = inner.export
    if not is_one_shape(inner.machines):
        words = machine_words(inner.machines)
        raise refused("skypilot", f"all machines of its tasks are alike, and this plan takes {words}", "Use slurm.")
    if program.target == "horovod":
        raise refused("skypilot", "horovodrun wants ssh from one machine to the others", "Name another --program.")
    resources, notes = _resources(job, inner.machines[0])
    notes = [*program.notes, *notes]
    notes.append(
        "network: a task names no bandwidth between machines; that of the plan comes with the instance, or not"
    )
    task: dict[str, Any] = {"name": job_name(job), "workdir": ".", "num_nodes": inner.num_machines}
    task["resources"] = resources
    if program.target in _SETUPS:
        task["setup"] = _SETUPS[program.target]
    else:
        notes.append(f"setup: install {program.version} in a setup block, or name an image that has it")
    task["run"] = f"{_RUN}bash {inner.scripts[0]}\n"
    head = f"planner.export/1 skypilot, for {_SKYPILOT}; {program.target} trains: {program.version}"
    files = {_TASK: yaml_text([task], [head, job.plan.configuration.headline, *notes]), **program.files}
    how = (f"sky launch -c {job_name(job)} {_TASK}   # in the folder of these files",)
    return Export(target="skypilot", version=_SKYPILOT, files=files, notes=tuple(notes), how_to_run=how)


def _resources(job: Job, row: UsedMachines) -> tuple[dict[str, Any], list[str]]:
    """Return the machine that is asked for and, of a plan with a fleet, where it is rented; with notes on both."""
    resources: dict[str, Any] = {}
    notes = []
    if device_of(job, row).kind == "gpu":
        name = _NAMES.get(row.device, row.device)
        resources["accelerators"] = f"{name}:{row.devices_per_machine}"
        if row.device not in _NAMES:
            notes.append(f"accelerator: {row.device} is not in SkyPilot's catalogue; name it as your own cluster does")
        elif list(_NAMES.values()).count(name) > 1:
            notes.append(f"accelerator: {name} stands for several boards; the plan is for {row.device}")
    else:
        notes.append(f"machines: the plan is for {row.device}; choose an instance_type of such CPUs")
    if job.settings.image is not None:
        resources["image_id"] = f"docker:{job.settings.image}"
    if len(job.offers) > 1:
        names = ", ".join(offer["name"] for offer in job.offers)
        notes.append(f"offers: a task takes machines of one kind on one term; the fleet has {names}")
    elif job.offers:
        offer = job.offers[0]
        if offer["provider"] not in _CLOUDS:
            notes.append(f"offer: {offer['name']} is no cloud that SkyPilot rents from; infra is left open")
            return resources, notes
        if offer["term"] not in ("on-demand", "spot"):
            notes.append(
                f"term: {offer['term']} has no word in a task, which is billed as your account's contract says"
            )
        resources["infra"] = f"{offer['provider']}/{offer['region']}"
        resources |= {"instance_type": offer["instance"], "use_spot": offer["term"] == "spot"}
    return resources, notes


def _recognises_skypilot(path: Path, text: str) -> bool:
    """Whether a file is a task of SkyPilot: YAML with ``run`` and ``num_nodes`` or ``resources``."""
    if path.suffix not in (".yaml", ".yml") or "\nrun:" not in text or "resources:" not in text:
        return False
    return any("run" in task and isinstance(task.get("resources"), dict) for task in documents_of(text))


def _skypilot_degrees(path: Path, text: str) -> Mapping[str, object]:
    """Return the numbers of devices and machines; the other decisions stand in the files of the program.

    Raises
    ------
    SpecError
        If the task does not say how many machines and accelerators it takes.
    """
    task = next(task for task in documents_of(text) if "run" in task)
    nodes, wanted = task.get("num_nodes", 1), task["resources"].get("accelerators", "cpu:1")
    if isinstance(wanted, dict) and len(wanted) == 1:
        wanted = ":".join(map(str, next(iter(wanted.items()))))
    name, _, count = str(wanted).partition(":")
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1 or not (count or "1").isdecimal() or not name:
        problem = f"num_nodes is {nodes!r} and accelerators are {wanted!r}: no numbers of machines and devices."
        raise Parsed(path, {}).fault(problem, hint="Write num_nodes: 4 and accelerators: A100:8.")
    return {"num_devices": nodes * int(count or 1), "num_machines": nodes}


EXPORTERS = {
    "slurm": Exporter(_export_slurm, _recognises_slurm, _slurm_degrees),
    "skypilot": Exporter(_export_skypilot, _recognises_skypilot, _skypilot_degrees),
}
