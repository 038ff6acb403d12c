"""Export for SkyPilot: a task that rents equal machines and starts another target's script on each.

Keys: ``sky/utils/schemas.py`` of SkyPilot 0.14.1. Names of accelerators: ``catalogs/v8/common/accelerators.csv`` of
github.com/skypilot-org/skypilot-catalog at commit 001ca54. Variables of a run: "Distributed Multi-Node Jobs",
docs.skypilot.co.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError
from planner.exporters.export import Export, Job, job_name, refused
from planner.exporters.kubernetes import documents_of, yaml_text
from planner.exporters.machines import device_of, is_one_shape, machine_words
from planner.exporters.programs_inside import Inner, inner_of
from planner.used_machines import UsedMachines

__all__ = ["VERSION", "degrees", "export", "recognises"]

VERSION = "SkyPilot 0.14.1"
_FILE = "task.yaml"
_CLOUDS = ("aws", "azure", "gcp", "lambda")  # providers of price lists that SkyPilot knows by the same name
_NAMES: Mapping[str, str] = {
    "k80": "K80",
    "p100-sxm2": "P100",
    "v100-sxm2-16g": "V100",
    "v100-sxm2-32g": "V100-32GB",
    "v100-pcie-16gb": "V100",
    "t4": "T4",
    "rtx-3090": "RTX3090",
    "rtx-4090": "RTX4090",
    "quadro-rtx-6000": "RTX6000",
    "rtx-a6000": "RTXA6000",
    "a10": "A10",
    "a10g": "A10G",
    "l4": "L4",
    "a100-pcie-40gb": "A100",
    "a100-sxm4-40gb": "A100",
    "a100-pcie-80gb": "A100-80GB",
    "a100-sxm4-80gb": "A100-80GB",
    "l40s": "L40S",
    "h100-pcie": "H100",
    "h100-nvl": "H100-NVL",
    "h100-sxm": "H100",
    "h200-sxm": "H200",
    "gh200-96gb": "GH200",
    "b200-sxm": "B200",
    "mi300x": "MI300X",
}
_SETUPS: Mapping[str, str] = {"ddp": "python -m pip install 'torch>=2.13'"}
_RUN = (
    'export NODE_RANK="$SKYPILOT_NODE_RANK" MASTER_ADDR="$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"\n'
    "cd ~/sky_workdir  # what lies beside the task\n"
)


def export(job: Job) -> Export:
    """Return the task, and the files of the program that it starts.

    Raises
    ------
    SpecError
        If what was asked to train is no program that trains.
    InfeasibleError
        If the program cannot run the plan, or the machines are unlike.
    """
    inner = inner_of(job, "skypilot")
    if not is_one_shape(inner.machines):
        words = machine_words(inner.machines)
        raise refused("skypilot", f"all machines of its tasks are alike, and this plan takes {words}", "Use slurm.")
    if inner.export.target == "horovod":
        raise refused("skypilot", "horovodrun wants ssh from one machine to the others", "Name another --program.")
    resources, own = _resources(job, inner.machines[0])
    notes = (*inner.export.notes, *own, *_notes(inner))
    files = {_FILE: _task(job, inner, resources, notes), **inner.export.files}
    how = (f"sky launch -c {job_name(job)} {_FILE}   # in the folder of these files",)
    return Export(target="skypilot", version=VERSION, files=files, notes=notes, how_to_run=how)


def _task(job: Job, inner: Inner, resources: Mapping[str, Any], notes: Sequence[str]) -> str:
    """Return the task as YAML."""
    target = inner.export.target
    task: dict[str, Any] = {
        "name": job_name(job),
        "workdir": ".",
        "num_nodes": inner.num_machines,
        "resources": resources,
    }
    if target in _SETUPS:
        task["setup"] = _SETUPS[target]
    task["run"] = f"{_RUN}bash {inner.scripts[0]}\n"
    head = [
        f"planner.export/1 skypilot, for {VERSION}; {target} trains: {inner.export.version}",
        job.plan.configuration.headline,
        *notes,
    ]
    return yaml_text([task], head)


def _resources(job: Job, row: UsedMachines) -> tuple[dict[str, Any], list[str]]:
    """Return the machine that is asked for, and what is to be said of it."""
    found: dict[str, Any] = {}
    notes = []
    if device_of(job, row).kind == "gpu":
        name = _NAMES.get(row.device, row.device)
        found["accelerators"] = f"{name}:{row.devices_per_machine}"
        if row.device not in _NAMES:
            notes.append(f"accelerator: {row.device} is not in SkyPilot's catalogue; name it as your own cluster does")
        elif len([one for one in _NAMES.values() if one == name]) > 1:
            notes.append(f"accelerator: {name} stands for several boards; the plan is for {row.device}")
    else:
        notes.append(f"machines: the plan is for {row.device}; choose an instance_type of such CPUs")
    if job.settings.image is not None:
        found["image_id"] = f"docker:{job.settings.image}"
    place, own = _place(job)
    return found | place, notes + own


def _place(job: Job) -> tuple[dict[str, Any], list[str]]:
    """Return where the machines are rented, where the plan came with a fleet."""
    if not job.offers:
        return {}, []
    if len(job.offers) > 1:
        names = ", ".join(one["name"] for one in job.offers)
        return {}, [f"offers: a task takes machines of one kind on one term; the fleet has {names}"]
    offer = job.offers[0]
    if offer["provider"] not in _CLOUDS:
        return {}, [f"offer: {offer['name']} is no cloud that SkyPilot rents from; infra is left open"]
    notes = []
    if offer["term"] not in ("on-demand", "spot"):
        notes.append(f"term: {offer['term']} has no word in a task, which is billed as your account's contract says")
    place = {
        "infra": f"{offer['provider']}/{offer['region']}",
        "instance_type": offer["instance"],
        "use_spot": offer["term"] == "spot",
    }
    return place, notes


def _notes(inner: Inner) -> list[str]:
    """Return what is left to the user."""
    notes = ["network: a task names no bandwidth between machines; that of the plan comes with the instance, or not"]
    if inner.export.target not in _SETUPS:
        notes.append(f"setup: install {inner.export.version} in a setup block, or name an image that has it")
    return notes


# -- reading it back ---------------------------------------------------------------------------------------------------


def recognises(path: Path, text: str) -> bool:
    """Whether a file is a task of SkyPilot: YAML with ``run`` and ``num_nodes`` or ``resources``."""
    if path.suffix not in (".yaml", ".yml") or "\nrun:" not in text or "resources:" not in text:
        return False
    return any("run" in one and isinstance(one.get("resources"), dict) for one in documents_of(text))


def degrees(path: Path, text: str) -> Mapping[str, Any]:
    """Return the numbers of devices and machines of a task as a ``fix`` block has them.

    The other decisions stand in the files of the program that the task starts.

    Raises
    ------
    SpecError
        If the task does not say how many machines and accelerators it takes.
    """
    task = next(one for one in documents_of(text) if "run" in one)
    nodes = task.get("num_nodes", 1)
    wanted = task["resources"].get("accelerators", "cpu:1")
    if isinstance(wanted, dict) and len(wanted) == 1:
        wanted = ":".join(map(str, next(iter(wanted.items()))))
    name, _, count = str(wanted).partition(":")
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1 or not (count or "1").isdecimal() or not name:
        problem = f"num_nodes is {nodes!r} and accelerators are {wanted!r}: no numbers of machines and devices."
        mend = "Write num_nodes: 4 and accelerators: A100:8."
        raise SpecError.of([Fault(file=str(path), problem=problem, mend=mend)])
    return {"num_devices": nodes * int(count or 1), "num_machines": nodes}
