"""What a plan must respect: the limits and families of a spec, and the devices that its batch is meant for."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner import data
from planner.cluster import Cluster
from planner.constraints import CONSTRAINTS
from planner.cost import Profile
from planner.data.devices import accelerator_memory_bytes
from planner.data.fits import transformer_ranges, transformer_rates
from planner.dnn import Dnn
from planner.errors import Fault, SpecError
from planner.names import FAMILY_NAMES, OF_TRANSFORMERS
from planner.networks import network_of
from planner.plan import Goal
from planner.problem import CompressionOption, Limits, Problem, Training, with_batch_per_device
from planner.question.blocks import CalibrationSpec
from planner.question.calibration import (
    Profiler,
    calibration_of,
    has_rooflines,
    is_fitted,
    note_doubts,
    note_narrowed,
    note_program,
    read_calibration,
    samples_per_device,
    with_fitted_links,
)
from planner.question.cluster import ClusterBuilder, with_former_defaults
from planner.question.dnn import (
    batch_of_profile,
    check_names,
    drafts_of,
    goal_of,
    read_network,
    substitution_of,
    training_of,
    with_network_files,
    with_networks,
)
from planner.question.source import Notes, Source, faults_of, read_source
from planner.question.spec import CompressionOptionSpec, ConfigurationSpec, Reading, Spec
from planner.substitution import Substitution


def fixed_of(reading: Reading, cluster: Cluster) -> dict[str, Any]:
    """Return the pinned decisions, a device by its proper name; refuse devices and groups that are not there."""
    fixed = {key: value for key, value in reading.spec.fix.model_dump().items() if value is not None}
    devices = tuple(dict.fromkeys(group.device.name for group in cluster.machine_groups))
    if (device := fixed.get("device")) is not None and device not in devices:  # the spec's own keep their names
        fixed["device"] = reading.notes.attempt(("fix", "device"), lambda: data.device(device).name)
        if fixed["device"] not in (None, *devices):
            _refuse(reading, "device", f"the cluster has no {fixed['device']}.", device, devices)
    groups = tuple(group.name for group in cluster.machine_groups)
    if (servers := fixed.get("servers")) is not None and servers not in groups:
        _refuse(reading, "servers", f"the cluster has no group {servers!r}.", servers, groups)
    stages = {fixed[key] for key in ("num_stages", "pipeline_parallel_size") if key in fixed}
    if len(stages) > 1:
        problem = "it contradicts fix.num_stages, which means the same."
        reading.notes.fault(("fix", "pipeline_parallel_size"), problem, "Give one.", fixed["pipeline_parallel_size"])
    return fixed


def excluded_of(reading: Reading, fixed: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the excluded values, each once; refuse a value that is pinned, too."""
    given = reading.spec.constraints.exclude.model_dump()
    excluded = {key: tuple(dict.fromkeys(values)) for key, values in given.items() if values}
    for key, values in excluded.items():
        if fixed.get(key) in values:
            what = f"fix.{key} asks for {fixed[key]}, which is excluded here."
            reading.notes.fault(("constraints", "exclude", key), what, "Give one of both.", fixed[key])
    return excluded


def _refuse(reading: Reading, key: str, problem: str, given: str, known: Sequence[str]) -> None:
    """Note that a pin names what is not there, and what there is."""
    reading.notes.fault(("fix", key), problem, f"Write one of {', '.join(known)}.", given)


def with_devices(
    reading: Reading, training: Training, cluster: Cluster, limits: Limits, fixed: Mapping[str, Any], goal: Goal
) -> Training:
    """Return the training with the devices that a batch per device is meant for; refuse a trivial question."""
    given, batch = reading.spec.constraints, training.batch_per_device
    if batch is None or training.max_global_batch_size is not None:
        return training
    is_open = any(one is not None and one.exactly is None for one in (given.devices, given.machines))
    if is_open and goal.name == "iteration_time" and "num_devices" not in fixed:
        name = "machines" if given.devices is None or given.devices.exactly is not None else "devices"
        problem = "with a fixed batch per device, fewer devices are trivially fastest per iteration."
        mend = "Ask for epoch_time, fix dnn.global_batch, or say how many exactly."
        reading.notes.fault(("constraints", name), problem, mend)
        return training
    meant = with_batch_per_device(training, batch, cluster, limits, fixed)
    if meant.num_devices is None:
        whole = meant.global_batch_size or 0
        reading.notes.assumptions.append(
            f"global batch: {whole}, {batch} samples for each of {whole // batch} unequal devices; how many of them "
            f"work, and on which shares, is planned"
        )
    return meant


def limits_of(reading: Reading, cluster: Cluster, training: Training) -> Limits:
    """Return the limits; refuse those that no plan can meet."""
    given = reading.spec.constraints.model_dump()
    limits = Limits(**{one.limit: one.read(given[one.key]) for one in CONSTRAINTS if one.limit})
    for one in CONSTRAINTS:
        for problem, mend, value in one.faults(limits, cluster, training):
            reading.notes.fault(("constraints", one.key), problem, mend, value)
    return limits


def families_of(reading: Reading) -> tuple[str, ...]:
    """Return the families that may answer; refuse to forbid all that are asked for."""
    asked = reading.spec.families or FAMILY_NAMES
    forbidden = reading.spec.constraints.forbidden_families
    if not (allowed := tuple(name for name in asked if name not in forbidden)):
        reading.notes.fault(
            ("constraints", "forbidden_families"), f"no family is left of {', '.join(asked)}.", "Allow one."
        )
    return allowed


# --- From a checked spec to a :class:`planner.problem.Problem`
# Files read, names looked up, and every assumption said aloud. Each block of a spec is read by a module of its own.


def load(question: str | Path | Mapping[str, Any], *, allowed_code: str | None = None) -> Problem:
    """Return the problem that a spec file, a plan file, or a mapping of the same keys asks.

    Parameters
    ----------
    allowed_code
        A factory of a PyTorch module, ``package:function``, that ``dnn.torch`` may name and that is run then.

    Raises
    ------
    SpecError
        With every fault of the text in one pass: file, line and column, field, value and mend.
    """
    if isinstance(question, Mapping):
        source = Source(data=copy.deepcopy(with_networks(question)), file="", folder=Path(), positions={})
    else:
        source = read_source(Path(question))
    if "sweep" in source.data:
        problem = "this asks many questions, which differ in what it varies."
        raise SpecError.of([source.fault(("sweep",), problem, "Ask `planner sweep`, or leave sweep out.")])
    if "procure" in source.data and "cluster" not in source.data:
        problem = "this asks which machines to have, not how to train on given ones."
        raise SpecError.of([source.fault(("procure",), problem, "Ask `planner procure`, or give a cluster instead.")])
    if source.data.get("schema") == "planner.procurement/1":
        source = _plan_of_fleet(source)
    if source.data.get("schema") == "planner.plan/1":
        source = _question_of_plan(source)
    return problem_of(with_network_files(replace(source, allowed_code=allowed_code)))


def load_question_of(plan: Mapping[str, Any]) -> Problem:
    """Return the problem that a plan's document asks, without its configuration."""
    return load(with_former_defaults(plan["problem"]))


def _plan_of_fleet(source: Source) -> Source:
    """Return the plan in the answer to what to buy or rent; refuse an answer that holds plans of several trainings."""
    choice = source.data.get("choice")
    plans = choice.get("plans") if isinstance(choice, dict) else None
    if not isinstance(plans, dict) or len(plans) != 1 or not isinstance(plan := next(iter(plans.values())), dict):
        problem = "this answers what to buy or rent, and does not hold the plan of one training."
        raise SpecError.of([Fault(file=source.file, problem=problem, mend="Give the plan of one of them in a file.")])
    return replace(source, data=plan, positions={})


def _question_of_plan(source: Source) -> Source:
    """Return the question inside a plan, with the plan's own configuration to predict."""
    plan = source.data
    missing = [key for key in ("problem", "family", "configuration") if key not in plan]
    if missing or not isinstance(plan["problem"], dict) or not isinstance(plan["family"], str):
        what = f"the plan lacks {', '.join(missing)}." if missing else "its problem or its family is of the wrong kind."
        raise SpecError.of([Fault(file=source.file, problem=what, mend="Give a file that `planner plan --out` wrote.")])
    given = {plan["family"]: plan["configuration"]}
    if plan.get("substitutions"):
        given["substitutions"] = plan["substitutions"]
    question = {**with_former_defaults(plan["problem"]), "configuration": given}
    return replace(source, data=question, positions={})


def problem_of(source: Source) -> Problem:
    """Return the problem of plain data: checked, looked up, resolved."""
    try:
        spec = Spec.model_validate(source.data)
    except ValidationError as error:
        raise SpecError.of(faults_of(error, source, Spec)) from None
    notes = Notes(source, warnings=list(spec.dnn.warnings))
    return _build(Reading(spec, source, notes, plain_copy(source.data)))


def plain_copy(data: Any) -> Any:
    """Return a copy of plain data, some ten times as fast as that of anything."""
    if isinstance(data, dict):
        return {key: plain_copy(value) if isinstance(value, dict | list) else value for key, value in data.items()}
    if isinstance(data, list):
        return [plain_copy(value) if isinstance(value, dict | list) else value for value in data]
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What a spec names, found: the network, the seconds of a batch where they were measured, and the machines."""

    dnn: Dnn
    measured: Profile | None
    profile_batch: int
    calibration: CalibrationSpec
    cluster: Cluster


def _build(reading: Reading) -> Problem:
    """Return the problem, or raise all faults at once."""
    spec, notes = reading.spec, reading.notes
    parts = _parts_of(reading)
    dnn, cluster, calibration = parts.dnn, parts.cluster, parts.calibration
    training = training_of(reading, dnn, parts.profile_batch, cluster)
    goal = goal_of(reading, training)
    fixed = fixed_of(reading, cluster)
    excluded = excluded_of(reading, fixed)
    limits = limits_of(reading, cluster, training)
    training = with_devices(reading, training, cluster, limits, fixed, goal)
    families = families_of(reading)
    fitted = notes.attempt(("calibration",), lambda: calibration_of(calibration))
    batch_per_device = samples_per_device(training, cluster, limits, fixed)
    profiler = Profiler(reading, cluster, calibration, training, batch_per_device)
    profiles = notes.attempt(("dnn",), lambda: profiler.profiles(dnn, parts.measured))
    if notes.faults or fitted is None or profiles is None:
        raise SpecError.of(notes.faults)
    substitutions = _substitutions_of(reading, parts, profiler)
    is_by_rooflines = parts.measured is None and has_rooflines(dnn, training.dtype, calibration)
    if is_by_rooflines:
        fitted = with_fitted_links(fitted, calibration)
    if dnn.transformer is not None and (is_by_rooflines or OF_TRANSFORMERS in families):
        note_program(notes, calibration)
    note_doubts(
        notes,
        dnn,
        cluster,
        calibration,
        parts.measured,
        training,
        batch_per_device=batch_per_device,
        is_by_rooflines=is_by_rooflines,
        is_hybrid_alone=dnn.transformer is not None and families == (OF_TRANSFORMERS,),
    )
    if dnn.transformer is not None and OF_TRANSFORMERS in families:
        note_narrowed(notes, cluster)
    if notes.faults:
        raise SpecError.of(notes.faults)
    problem = Problem(
        dnn=dnn,
        cluster=cluster,
        profiles=profiles,
        training=training,
        calibration=fitted,
        limits=limits,
        goal=goal,
        families=families,
        fixed=fixed,
        excluded=excluded,
        compression=None if spec.compression is None else _compression_of(spec.compression),
        substitutions=substitutions,
        configuration=None if spec.configuration is None else _block_of(spec.configuration),
        variant=spec.variant,
        transformer_rates={} if dnn.transformer is None else {**transformer_rates(), "ranges": transformer_ranges()},
        listed_memory_bytes={} if dnn.transformer is None else accelerator_memory_bytes(),
        is_computation_measured=parts.measured is not None or calibration.utilisation is not None,
        are_links_calibrated=is_fitted(calibration),
        key_assumptions=tuple(notes.key_assumptions),
        assumptions=tuple(dict.fromkeys(notes.assumptions)),
        warnings=tuple(dict.fromkeys(notes.warnings)),
        resolved=reading.resolved,
    )
    return _as_configured(problem, spec.configuration)


def _parts_of(reading: Reading) -> _Parts:
    """Return what the spec names, or raise the faults of all that is not to be found."""
    spec, notes = reading.spec, reading.notes
    profile_batch = batch_of_profile(reading)
    key = "sequence_length" if spec.dnn.sequence_length is not None else spec.dnn.source
    network = notes.attempt(("dnn", key), lambda: read_network(reading, profile_batch))
    calibration = notes.attempt(
        ("calibration",), lambda: read_calibration(spec.calibration, reading.source, reading.resolved)
    )
    cluster = notes.attempt(("cluster",), lambda: ClusterBuilder(notes, reading.resolved).build(spec.cluster))
    if network is None or calibration is None or cluster is None:
        raise SpecError.of(notes.faults)
    dnn, measured = network
    return _Parts(dnn=dnn, measured=measured, profile_batch=profile_batch, calibration=calibration, cluster=cluster)


def _substitutions_of(reading: Reading, parts: _Parts, profiler: Profiler) -> tuple[Substitution, ...]:
    """Return the allowed substitutions, with the seconds of their blocks; note which names are wrong."""
    drafts = drafts_of(
        reading.spec.dnn.substitutions,
        parts.dnn,
        profile_batch=parts.profile_batch,
        measured=parts.measured,
        notes=reading.notes,
    )
    allowed = tuple(substitution_of(one, profiler.profiles(one.block, one.measured)) for one in drafts)
    _check_substitutions(reading, allowed)
    return allowed


def _check_substitutions(reading: Reading, allowed: tuple[Substitution, ...]) -> None:
    """Refuse pinned or configured substitutions that cannot be; not where the allowed ones are wrong already."""
    given = reading.spec.configuration
    for path, names in (
        (("fix", "substitutions"), reading.spec.fix.substitutions),
        (("configuration", "substitutions"), given.substitutions if given else None),
    ):
        if not reading.notes.faults:
            reading.notes.attempt(path, lambda names=names: check_names(names or (), allowed))  # type: ignore[misc]


def _as_configured(problem: Problem, given: ConfigurationSpec | None) -> Problem:
    """Return the problem of the network that a configuration or a pin chooses, if there is one to predict."""
    if given is None or not (problem.substitutions or "substitutions" in problem.fixed):
        return problem
    names = problem.fixed.get("substitutions", ()) if given.substitutions is None else given.substitutions
    return network_of(problem, names)


def _compression_of(given: CompressionOptionSpec) -> CompressionOption:
    """Return what may be compressed."""
    return CompressionOption(scale_s=given.time, most_removed=given.at_most)


def _block_of(configuration: ConfigurationSpec) -> tuple[str, dict[str, Any]]:
    """Return the family of a configuration, and its block."""
    return configuration.family, getattr(configuration, configuration.family).model_dump()
