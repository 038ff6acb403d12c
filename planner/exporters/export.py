"""Plans out, as launch files: what every exporter takes and gives, and the table of targets.

Each target's module is imported when it is asked for.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from planner.errors import Fault, InfeasibleError, PlannerError, SpecError
from planner.exporters.scripts import safe_name
from planner.families import FAMILIES
from planner.frozen import frozen
from planner.names import find, fold
from planner.plan import Plan
from planner.plugins import Plugin, Registry
from planner.problem import Problem
from planner.shown import document_of
from planner.transformer import Transformer


@frozen
class Settings:
    """What a plan does not know of a launch."""

    script: str | None = None  # the user's training program, and its arguments; None where the target brings its own
    image: str | None = None  # of a container, where the target starts containers
    # what trains, where the target only starts machines (Slurm, SkyPilot, Kubernetes): the name of another target
    program: str | None = None
    name: str | None = None  # of the job


@frozen
class Job:
    """A plan with the question it answers: the network that was chosen is ``problem.dnn``.

    ``offers``: where the plan came with the answer to a question of a purchase, the rows of its fleet, as
    ``planner.procurement/1`` has them: provider, instance, region, term, device, count.
    ``is_probe``: it is only asked whether the target can run the plan, so that sizes of buffers are not searched for,
    nor is told what a change costs.
    """

    problem: Problem
    plan: Plan
    settings: Settings = field(default_factory=Settings)
    offers: tuple[Mapping[str, Any], ...] = ()
    is_probe: bool = False


@frozen
class Export:
    """Launch files.

    Attributes
    ----------
    target
        As it is named on the command line.
    version
        Of the program that reads the files; it stands in each of them, too, where the format has comments.
    files
        Text by file name; the first one is the one to begin with.
    notes
        What the program cannot express, what that loses, and what is left to the user; nothing is dropped in silence.
    how_to_run
        The command, or the few, that start it.
    """

    target: str
    version: str
    files: Mapping[str, str]
    notes: tuple[str, ...] = ()
    how_to_run: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return what a prompt shows; ``files`` has the texts."""
        return f"<Export: {self.target}, {', '.join(self.files)}>"

    def to_dict(self) -> dict[str, object]:
        """Return ``planner.export/1``."""
        return {"schema": "planner.export/1", **document_of(self)}


@frozen
class TrainingBlocks:
    """What a launch file says of a training beside its network and its layout, as blocks of a spec have it."""

    # of ``global_batch``, ``dtype``, ``fp8_recipe``, ``bf16_layers``, ``optimizer``, ``fine_tuning`` what it says
    dnn: Mapping[str, Any] = field(default_factory=dict)
    # ``program``, and ``gradients`` and ``cuda_graphs`` where they are not as the program has them by itself
    calibration: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # what it asks for and no block says


@frozen(kw_only=False)
class Exporter:
    """What the module of a target declares in its ``EXPORTERS``."""

    # writes the files of a plan; raises InfeasibleError where the program cannot run it
    export: Callable[[Job], Export]
    recognises: Callable[[Path, str], bool]  # whether a file, by its path and its text, is one of these
    # of such a file: its decisions as a ``fix`` block has them; raises SpecError where it is damaged
    degrees: Callable[[Path, str], Mapping[str, object]]
    # of such a file: the network that it trains, where its sizes stand in it; raises SpecError as ``degrees`` does
    network: Callable[[Path, str], Transformer | None] = lambda _path, _text: None
    # of such a file: numbers, optimiser, adapters and batch; raises SpecError as ``degrees`` does
    training: Callable[[Path, str], TrainingBlocks] = lambda _path, _text: TrainingBlocks()


@frozen(kw_only=False)
class Target:
    """A row of the table of targets."""

    module: str = ""  # that declares its :class:`Exporter`, below ``planner.exporters``
    own: Exporter | None = None  # the exporter itself, where no module of ours declares it
    aliases: Sequence[str] = ()  # what else people call it, folded as by :func:`planner.names.fold`
    starts_machines: bool = False  # whether it starts machines, and has another target train on them
    names_jobs: bool = False  # whether it has a use for the settings ``image`` and ``name``
    # whose plans it may run; of others it need not be asked. None: it says so itself
    families: Sequence[str] | None = None

    def exporter(self, name: str) -> Exporter:
        """Return what its module declares."""
        if self.own is not None:
            return self.own
        found: Exporter = import_module(f"planner.exporters.{self.module}").EXPORTERS[name]
        return found


_DDP = ("pytorch", "pytorchddp", "torchddp", "torchrun", "distributeddataparallel")
_BY_DEGREES = ("all_reduce", "hybrid")  # the families whose plans are degrees, as layouts have them
_OWN: Mapping[str, Target] = {
    "ddp": Target("data_parallel", aliases=_DDP),
    "horovod": Target("data_parallel"),
    "deepspeed": Target("deepspeed", aliases=("microsoftdeepspeed",)),
    "accelerate": Target("accelerate", aliases=("huggingfaceaccelerate", "hfaccelerate"), families=_BY_DEGREES),
    "megatron": Target("megatron", aliases=("megatronlm", "megatroncore", "nvidiamegatron"), families=_BY_DEGREES),
    "megatron-bridge": Target(
        "bridge", aliases=("bridge", "nemo", "nemomegatronbridge", "nvidianemo"), families=_BY_DEGREES
    ),
    "primus": Target("primus", aliases=("amdprimus",), families=_BY_DEGREES),
    "torchtitan": Target("torchtitan", families=_BY_DEGREES),
    "maxtext": Target("maxtext", families=_BY_DEGREES),
    "tfjob": Target("kubernetes", aliases=("kubeflowtfjob",), names_jobs=True),
    "pytorchjob": Target("kubernetes", aliases=("kubeflowpytorchjob",), starts_machines=True, names_jobs=True),
    "trainjob": Target("kubernetes", aliases=("kubeflowtrainjob",), starts_machines=True, names_jobs=True),
    "slurm": Target("starters", aliases=("sbatch",), starts_machines=True, names_jobs=True),
    "skypilot": Target("starters", aliases=("sky",), starts_machines=True, names_jobs=True),
}


def _of_plugin(found: Any, plugin: Plugin) -> Target:
    """Return the row of a plug-in: a :class:`Target` with its exporter, or that alone."""
    row = Target(own=found) if isinstance(found, Exporter) else found
    if not isinstance(row, Target) or row.own is None:
        raise TypeError(f"{plugin.place} is no Exporter, nor a Target with its own")
    return row


TARGETS: Registry[Target] = Registry("planner.exporters", _OWN, made_of=_of_plugin)
# Of a family, the programs that are tried where none is named: the first that can run the plan is taken.
PROGRAMS: Mapping[str, Sequence[str]] = {
    "all_reduce": ("ddp",),
    "hybrid": ("megatron", "deepspeed", "torchtitan"),
    "pipeline": ("deepspeed",),
}


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
    name, settings = target_of(target), job.settings
    row = TARGETS[name]
    _check(settings)
    if settings.program is not None and not row.starts_machines:
        starters = ", ".join(other for other, one in _OWN.items() if one.starts_machines)
        hint = f"Leave it out, or export to one of {starters}."
        raise SpecError.of_option("--program", f"{name} trains itself.", hint, value=settings.program)
    files = row.exporter(name).export(job)
    unused = [f"--{key}" for key in ("image", "name") if getattr(settings, key) is not None and not row.names_jobs]
    if not unused:
        return files
    note = f"{', '.join(unused)}: not used, since {name} starts no containers and names no jobs"
    return replace(files, notes=(*files.notes, note))


def advised(target: str, job: Job) -> Export:
    """Return what :func:`export` does; where the target cannot run the plan, the error names those that can."""
    try:
        return export(target, job)
    except InfeasibleError as error:
        # With what each starts by itself, whatever program was asked for.
        probe = replace(job, settings=replace(job.settings, program=None), is_probe=True)
        others = list(TARGETS.where(lambda name: name != target_of(target) and _runs(name, probe)))
        which = f" Targets that can: {', '.join(others)}." if others else " No target can."
        # A hint that names targets does not know of this plan what the list behind it does.
        raise InfeasibleError(f"{_EXPORT_TO.sub('.', str(error))}{which}") from None


_EXPORT_TO = re.compile(r"[.;,] (?:or )?[Ee]xport to [^.]*\.(?= |$)")


def _runs(name: str, job: Job) -> bool:
    """Whether a target can run a plan."""
    try:
        export(name, job)
    except InfeasibleError:
        return False
    return True


def refusal_of(job: Job) -> str | None:
    """Return None where some target can launch a plan, else what the first program for its family and devices said.

    Targets that only start machines come last: they run what the programs before them can. Those of plug-ins are asked
    of a plug-in's family alone: what is said of our own is the same whatever is installed.
    """
    family, why, is_of_kind = job.plan.family, None, True
    probe = replace(job, is_probe=True)
    own = PROGRAMS.get(family, ())
    names = TARGETS.own if family in FAMILIES.own else TARGETS.usable()
    for name in chain(own, (one for one in names if one not in own)):
        if why is not None and family not in (TARGETS[name].families or (family,)):
            continue
        try:
            export(name, probe)
        except PlannerError as error:
            is_other, is_own = isinstance(error, OtherDeviceError), family in (TARGETS[name].families or ())
            if why is not None and (is_of_kind or is_other or not is_own):
                continue
            refusal = str(error).removeprefix(f"{name} cannot run this plan: ").partition(". ")[0].rstrip(".")
            why, is_of_kind = f"{f'with {name}, ' * (name in own or is_own)}{refusal}", not is_other
        except Exception:  # code of others raises anything: such a target launches nothing, and who names it is told
            if name in TARGETS.own:
                raise
        else:
            return None
    return why


def target_of(text: str) -> str:
    """Return the proper name of a target; raise SpecError with all of them where there is none.

    >>> target_of("Megatron-LM"), target_of("pytorch_ddp")
    ('megatron', 'ddp')
    """
    known = {
        **{fold(name): name for name in _OWN},
        **{alias: name for name, row in _OWN.items() for alias in row.aliases},
    }
    if fold(text) not in known:
        known |= {fold(name): name for name in TARGETS.plugins}
    try:
        return find(text, known, "target")
    except SpecError as error:
        hint = f"Targets: {', '.join(TARGETS)}."
        near = error.faults[0].mend if error.faults[0].mend.startswith("Did you mean") else ""
        raise SpecError.of([replace(error.faults[0], mend=f"{near} {hint}".strip())]) from None


def reader_of(path: Path, text: str) -> tuple[str, Exporter] | None:
    """Return the target whose file this is, and what reads it; None if it is of none."""
    readers = TARGETS.where(lambda name: TARGETS[name].exporter(name).recognises(path, text))
    return next(((name, TARGETS[name].exporter(name)) for name in readers), None)


def degrees_of(path: Path, text: str) -> tuple[str, Mapping[str, object]] | None:
    """Return the target whose file this is, and its decisions as a ``fix`` block has them; None if it is of none."""
    found = reader_of(path, text)
    return None if found is None else (found[0], found[1].degrees(path, text))


def network_of(path: Path, text: str) -> Transformer | None:
    """Return the network that a launch file of an export trains; None where it is none, or says no sizes."""
    found = reader_of(path, text)
    return None if found is None else found[1].network(path, text)


class OtherDeviceError(InfeasibleError):
    """What is written for a target runs on devices of another kind."""


def refused(target: str, why: str, hint: str) -> InfeasibleError:
    """Return the error of a plan that a target cannot run at all; exit code 1."""
    return InfeasibleError(f"{target} cannot run this plan: {why}. {hint}")


def job_name(job: Job) -> str:
    """Return the name of the job, as Kubernetes allows it."""
    return safe_name(job.settings.name, safe_name(job.problem.dnn.name))


def _check(settings: Settings) -> None:
    """Refuse a setting that is empty, has control characters, or quotes that do not close."""
    faults: list[Fault] = []
    for key in ("script", "image", "name"):
        text, problem = getattr(settings, key), ""
        if text is None:
            continue
        if not text.strip() or not text.isprintable():
            problem = "this is empty, or holds a line break or another control character."
        elif key == "script":
            try:
                shlex.split(text)
            except ValueError as error:
                problem = f"this is no command line: {str(error).lower()}."
        if problem:
            hint = "Write it as on a command line, in one line." if key == "script" else "Write a name in one line."
            faults += SpecError.of_option(f"--{key}", problem, hint, value=text[:60]).faults
    if faults:
        raise SpecError.of(faults)
