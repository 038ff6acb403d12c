"""The targets by name; each module is imported when it is asked for."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from planner.errors import Fault, InfeasibleError, SpecError
from planner.exporters.export import Export, Job, Settings
from planner.names import find, fold

__all__ = ["TARGETS", "advised", "degrees_of", "export", "target_of"]

# Target -> what it writes. Module ``planner.exporters.<target with _>`` has ``export(job) -> Export`` and, where its
# format carries degrees back, ``recognises(path, text) -> bool`` and ``degrees(path, text)`` with keys of ``fix``.
TARGETS: Mapping[str, str] = {
    "ddp": "PyTorch DistributedDataParallel: buckets, and the line of torchrun",
    "horovod": "Horovod's environment: fusion threshold and cycle time",
    "deepspeed": "DeepSpeed's configuration",
    "accelerate": "Hugging Face Accelerate's configuration",
    "megatron": "arguments of Megatron-LM",
    "torchtitan": "overrides of torchtitan's configuration",
    "tfjob": "Kubeflow TFJob, with parameter servers",
    "pytorchjob": "Kubeflow PyTorchJob",
    "trainjob": "Kubeflow TrainJob",
    "slurm": "a batch script of Slurm",
    "skypilot": "a task of SkyPilot",
}
# What people call a target, folded as by :func:`planner.names.fold`.
_ALIASES: Mapping[str, str] = {
    "pytorch": "ddp",
    "pytorchddp": "ddp",
    "torchddp": "ddp",
    "torchrun": "ddp",
    "distributeddataparallel": "ddp",
    "microsoftdeepspeed": "deepspeed",
    "huggingfaceaccelerate": "accelerate",
    "hfaccelerate": "accelerate",
    "megatronlm": "megatron",
    "megatroncore": "megatron",
    "nvidiamegatron": "megatron",
    "kubeflowtfjob": "tfjob",
    "kubeflowpytorchjob": "pytorchjob",
    "kubeflowtrainjob": "trainjob",
    "sbatch": "slurm",
    "sky": "skypilot",
}
# Settings that only some targets take.
_STARTERS = ("pytorchjob", "trainjob", "slurm", "skypilot")  # which start machines, and have another target train
_WITH_NAMES = (*_STARTERS, "tfjob")


def export(target: str, job: Job) -> Export:
    """Return a plan's launch files for one target.

    Raises
    ------
    SpecError
        If there is no such target, a setting cannot be a command line, or another program is asked of a target that
        trains itself.
    InfeasibleError
        If the target cannot run the plan; the message says why.
    """
    name = target_of(target)
    _check(job.settings)
    if job.settings.program is not None and name not in _STARTERS:
        problem, mend = f"{name} trains itself.", f"Leave it out, or export to one of {', '.join(_STARTERS)}."
        fault = Fault(file="command line", field="--program", value=job.settings.program, problem=problem, mend=mend)
        raise SpecError.of([fault])
    found: Export = import_module(f"planner.exporters.{name}").export(job)
    return found if name in _WITH_NAMES else replace(found, notes=(*found.notes, *_unused(name, job.settings)))


def _unused(name: str, settings: Settings) -> tuple[str, ...]:
    """Return which settings a target has no use for."""
    given = {"--image": settings.image, "--name": settings.name}
    options = [option for option, text in given.items() if text is not None]
    return (f"{', '.join(options)}: not used, since {name} starts no containers and names no jobs",) if options else ()


def advised(target: str, job: Job) -> Export:
    """Return what :func:`export` does; where the target cannot run the plan, the error names those that can."""
    try:
        return export(target, job)
    except InfeasibleError as error:
        others = [one for one in TARGETS if one != target_of(target) and _can(one, job)]
        which = f" Targets that can: {', '.join(others)}." if others else " No target can."
        raise InfeasibleError(f"{error}{which}") from None


def target_of(text: str) -> str:
    """Return the proper name of a target; raise SpecError with all of them where there is none.

    >>> target_of("Megatron-LM"), target_of("pytorch_ddp")
    ('megatron', 'ddp')
    """
    known = {**{fold(name): name for name in TARGETS}, **_ALIASES}
    try:
        return find(text, known, "target")
    except SpecError as error:
        mend = f"Targets: {', '.join(TARGETS)}."
        near = error.faults[0].mend if error.faults[0].mend.startswith("Did you mean") else ""
        fault = replace(error.faults[0], mend=f"{near} {mend}".strip())
        raise SpecError.of([fault]) from None


def _can(name: str, job: Job) -> bool:
    """Whether a target can run a plan with what it starts by itself, whatever program was asked for."""
    try:
        export(name, replace(job, settings=replace(job.settings, program=None), is_probe=True))
    except InfeasibleError:
        return False
    return True


def _check(settings: Settings) -> None:
    """Refuse a setting that is empty, has control characters, or quotes that do not close."""
    texts = {"script": settings.script, "image": settings.image, "name": settings.name}
    faults = []
    for field, text in texts.items():
        if text is None:
            continue
        problem = ""
        if not text.strip() or not text.isprintable():
            problem = "this is empty, or holds a line break or another control character."
        elif field == "script":
            try:
                shlex.split(text)
            except ValueError as error:
                problem = f"this is no command line: {str(error).lower()}."
        if problem:
            mend = "Write it as on a command line, in one line." if field == "script" else "Write a name in one line."
            faults.append(Fault(file="command line", field=f"--{field}", value=text[:60], problem=problem, mend=mend))
    if faults:
        raise SpecError.of(faults)


def degrees_of(path: Path, text: str) -> tuple[str, Mapping[str, Any]] | None:
    """Return the target whose file this is, and its decisions as a ``fix`` block has them; None if it is of none."""
    for target in TARGETS:
        module = import_module(f"planner.exporters.{target}")
        if hasattr(module, "recognises") and module.recognises(path, text):
            return target, module.degrees(path, text)
    return None
