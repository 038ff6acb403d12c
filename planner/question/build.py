"""From a question, a spec or a plan file, to a :class:`planner.problem.Problem`.

Files are read, names looked up, and every assumption is said aloud. Each block is read by a module of its own; pins,
limits and families, which span the blocks, are read here.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, cast

import numpy as np
from pydantic import ValidationError

from planner import data
from planner.cluster import Cluster
from planner.constraints import CONSTRAINTS
from planner.data.devices import accelerator_memory_bytes
from planner.decisions import TURNED, asked_by, cut_shape, parted_depths, written
from planner.errors import Fault, SpecError
from planner.names import FAMILY_NAMES
from planner.networks import network_of
from planner.plan import Goal
from planner.plugins import missing
from planner.problem import CompressionOption, Limits, Problem, Training, with_batch_per_device
from planner.question.calibration import (
    Profiler,
    calibration_of,
    is_fitted,
    read_calibration,
    samples_per_device,
)
from planner.question.cluster import cluster_of, with_former_defaults, with_graph
from planner.question.dnn import (
    batch_of_profile,
    check_names,
    check_training,
    goal_of,
    read_network,
    substitutions_of,
    training_of,
    with_network_files,
    with_networks,
)
from planner.question.low_precision import families_of_low
from planner.question.source import Notes, Source, faults_of, read_source
from planner.question.spec import Reading, Spec
from planner.transformer import Transformer


def source_of(question: str | Path | Mapping[str, object]) -> Source:
    """Return what a question says: that of a file with its lines, that of a mapping as plain data of its own."""
    if not isinstance(question, Mapping):
        return read_source(question)
    return Source(data=_own(with_networks(with_graph(question)), {}), file="", folder=Path(), positions={})


_MOST_OF_RANGE = 1_000_000
_ATOMS = frozenset((str, int, float, bool, type(None)))


def _is_series(value: object) -> bool:
    """Whether a value is a series or an index of pandas, which nobody has who has not imported it."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, (pandas.Series, pandas.Index))


def _own(value: Any, copies: dict[int, tuple[Any, Any]]) -> Any:
    """Return a copy in plain data, also of what NumPy, pandas, ranges and paths hold: an answer holds its question.

    Sets are put in order, so that the same question is the same text; what is no container is refused, or is a value.
    """
    if type(value) in _ATOMS:
        return value
    if id(value) in copies:  # also what holds itself, and is refused as any key that is not known
        return copies[id(value)][1]
    is_array = isinstance(value, np.generic | np.ndarray)
    plain = value.tolist() if is_array or _is_series(value) else value
    if isinstance(value, range):
        if value[_MOST_OF_RANGE:]:  # len() has no word for the longest
            raise SpecError(f"{value!r} holds more than {_MOST_OF_RANGE:,} numbers. Give fewer.")
        return list(value)
    if isinstance(value, PurePath):
        return str(value)
    if is_array and not value.dtype.hasobject:
        return plain
    if isinstance(plain, tuple):
        return tuple(_own(part, copies) for part in plain)
    if isinstance(plain, Mapping):
        copied: Any = {}
        copies[id(value)] = value, copied  # the value, so that its id stays its own
        copied.update((key, _own(part, copies)) for key, part in plain.items())
    elif isinstance(plain, list | set | frozenset):
        copied = []
        copies[id(value)] = value, copied
        copied.extend(_own(part, copies) for part in (plain if isinstance(plain, list) else sorted(plain, key=repr)))
    else:
        copied = plain if plain is value else _own(plain, copies)
    return copied


def load(question: str | Path | Mapping[str, object], *, allowed_code: str | None = None) -> Problem:
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
    source = source_of(question)
    if "sweep" in source.data:
        problem = "this asks many questions, which differ in what it varies."
        raise source.error(("sweep",), problem, "Ask `planner sweep`, or leave sweep out.")
    if "procure" in source.data and "cluster" not in source.data:
        problem = "this asks which machines to have, not how to train on given ones."
        raise source.error(("procure",), problem, "Ask `planner procure`, or give a cluster instead.")
    if source.data.get("schema") == "planner.procurement/1":
        source = _plan_of_fleet(source)
    if source.data.get("schema") == "planner.plan/1":
        source = _question_of_plan(source)
    return problem_of(with_network_files(replace(source, allowed_code=allowed_code)))


def load_resolved(question: Mapping[str, Any]) -> Problem:
    """Return the problem of what :class:`planner.problem.Problem` holds as resolved, with other values in places.

    It is plain data of ours, so that :func:`load` would copy it for nothing.
    """
    return problem_of(with_network_files(Source(data=dict(question), file="", folder=Path(), positions={})))


def load_question_of(plan: Mapping[str, object]) -> Problem:
    """Return the problem that a plan's document asks, without its configuration."""
    _refuse_missing(plan)
    return load(with_former_defaults(cast("Mapping[str, object]", plan["problem"])))


def _plan_of_fleet(source: Source) -> Source:
    """Return the plan in the answer to what to buy or rent; refuse an answer that holds plans of several trainings."""
    choice = source.data.get("choice")
    plans = choice.get("plans") if isinstance(choice, dict) else None
    if not isinstance(plans, dict) or len(plans) != 1 or not isinstance(plan := next(iter(plans.values())), dict):
        problem = "this answers what to buy or rent, and does not hold the plan of one training."
        raise SpecError.one(problem, "Give the plan of one of them in a file.", file=source.file)
    return replace(source, data=plan, positions={})


def _refuse_missing(plan: Mapping[str, Any], file: str = "") -> None:
    """Refuse a plan that rests on plug-ins which are not here."""
    provenance = plan.get("provenance")
    needed = provenance.get("plugins") if isinstance(provenance, Mapping) else None
    if isinstance(needed, Mapping) and (lacking := missing(needed)):
        mend = "Install what is missing in the same environment; see `planner show plugins`."
        raise SpecError.of([Fault(file=file, problem=f"the plan rests on the {one}.", mend=mend) for one in lacking])


def _question_of_plan(source: Source) -> Source:
    """Return the question inside a plan, with the plan's own configuration to predict."""
    plan = source.data
    _refuse_missing(plan, source.file)
    missing = [key for key in ("problem", "family", "configuration") if key not in plan]
    if missing or not isinstance(plan["problem"], dict) or not isinstance(plan["family"], str):
        what = f"the plan lacks {', '.join(missing)}." if missing else "its problem or its family is of the wrong kind."
        raise SpecError.one(what, "Give a file that `planner plan --out` wrote.", file=source.file)
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
    return _build(Reading(spec, source, notes, _copy(source.data)))


def _copy(data: Any) -> Any:
    """Return a copy of plain data, some ten times as fast as that of anything."""
    if isinstance(data, dict):
        return {key: _copy(value) if isinstance(value, dict | list) else value for key, value in data.items()}
    if isinstance(data, list):
        return [_copy(value) if isinstance(value, dict | list) else value for value in data]
    return data


def _build(reading: Reading) -> Problem:
    """Return the problem, or raise all faults at once."""
    spec, notes = reading.spec, reading.notes
    profile_batch = batch_of_profile(reading)
    key = "sequence_length" if spec.dnn.sequence_length is not None else spec.dnn.source
    network = notes.attempt(("dnn", key), lambda: read_network(reading, profile_batch))
    calibration = notes.attempt(
        ("calibration",), lambda: read_calibration(spec.calibration, reading.source, reading.resolved)
    )
    cluster = notes.attempt(("cluster",), lambda: cluster_of(spec.cluster, notes, reading.resolved))
    if network is None or calibration is None or cluster is None:
        raise SpecError.of(notes.faults)
    dnn, measured = network
    training = training_of(reading, dnn, profile_batch, cluster)
    goal = goal_of(reading, training, reads_tokens=dnn.transformer is not None)
    fixed, excluded = _decisions_of(reading, cluster)
    given = spec.constraints.model_dump()
    read: dict[str, Any] = {one.limit: one.read(given[one.key]) for one in CONSTRAINTS if one.limit}
    limits = Limits(**read)
    for one in CONSTRAINTS:
        for problem, mend, value in one.faults(limits, cluster, training):
            notes.fault(("constraints", one.key), problem, mend, value)
    if (layers := fixed.get("layers_per_stage")) and dnn.transformer is not None:
        _check_layers(notes, layers, fixed, dnn.transformer)
    training = _with_devices(reading, training, cluster, limits, fixed, goal)
    asked = spec.families or FAMILY_NAMES
    families = tuple(name for name in asked if name not in spec.constraints.forbidden_families)
    families = families_of_low(reading, training.low, families) if families else families
    if not families:
        notes.fault(("constraints", "forbidden_families"), f"no family is left of {', '.join(asked)}.", "Allow one.")
    fitted = notes.attempt(("calibration",), lambda: calibration_of(calibration))
    profiler = Profiler(
        reading=reading,
        cluster=cluster,
        calibration=calibration,
        training=training,
        batch_per_device=samples_per_device(training, cluster, limits, fixed.get("num_devices")),
    )
    profiles = notes.attempt(("dnn",), lambda: profiler.profiles(dnn, measured))
    if notes.faults or fitted is None or profiles is None:
        raise SpecError.of(notes.faults)
    blocks = substitutions_of(reading, dnn, profile_batch, is_measured=measured is not None)
    substitutions = tuple(replace(one, profiles=profiler.profiles(one.block, seconds)) for one, seconds in blocks)
    configured = spec.configuration
    for path, names in (
        (("fix", "substitutions"), spec.fix.substitutions),
        (("configuration", "substitutions"), configured.substitutions if configured else None),
    ):
        if names and not notes.faults:  # not where the allowed ones are wrong already
            notes.attempt(path, lambda names=names: check_names(names, substitutions))  # type: ignore[misc]
    is_by_rooflines = measured is None and profiler.has_rooflines(dnn)
    fitted = replace(fitted, links=profiler.links(is_by_rooflines=is_by_rooflines))
    profiler.note_warnings(dnn, measured, families)
    check_training(reading, training)
    if notes.faults:
        raise SpecError.of(notes.faults)
    option = spec.compression
    found = Problem(
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
        compression=None if option is None else CompressionOption(scale_s=option.time, most_removed=option.at_most),
        substitutions=substitutions,
        configuration=None if configured is None else (configured.family, cluster.with_names(configured.block[1])),
        variant=spec.variant,
        transformer_rates={} if dnn.transformer is None else profiler.transformer_figures(),
        listed_memory_bytes={} if dnn.transformer is None else accelerator_memory_bytes(),
        is_computation_measured=measured is not None or calibration.utilisation is not None,
        are_links_calibrated=is_fitted(calibration),
        key_assumptions=tuple(notes.key_assumptions),
        assumptions=tuple(dict.fromkeys(notes.assumptions)),
        warnings=tuple(dict.fromkeys(notes.warnings)),
        resolved=reading.resolved,
    )
    if configured is None or not (substitutions or "substitutions" in fixed):
        return found
    chosen = fixed.get("substitutions", ()) if configured.substitutions is None else configured.substitutions
    return network_of(found, chosen)  # that is predicted


def _decisions_of(reading: Reading, cluster: Cluster) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """Return the pinned decisions, a device by its proper name, and the excluded values, each once.

    Refused: devices and groups that are not there, pins that contradict each other, and a pin of what is excluded.
    """
    notes = reading.notes
    fixed = {key: value for key, value in reading.spec.fix.model_dump().items() if value is not None}
    devices = tuple(dict.fromkeys(group.device.name for group in cluster.machine_groups))
    if (device := fixed.get("device")) is not None and device not in devices:  # the spec's own keep their names
        fixed["device"] = notes.attempt(("fix", "device"), lambda: data.device(device).name)
        if fixed["device"] not in (None, *devices):
            problem = f"the cluster has no {fixed['device']}."
            notes.fault(("fix", "device"), problem, f"Write one of {', '.join(devices)}.", device)
    groups = tuple(group.name for group in cluster.machine_groups)
    if "servers" in fixed:
        fixed["servers"] = cluster.with_names(fixed["servers"], is_name=True)
    if (servers := fixed.get("servers")) is not None and servers not in groups:
        problem = f"the cluster has no group {servers!r}."
        notes.fault(("fix", "servers"), problem, f"Write one of {', '.join(groups)}.", servers)
    said = dict(fixed)
    for key, value in said.items():  # a pin asks for what it goes with, also where it says what is usual
        for other, wanted in asked_by({key: value}).items():
            if (present := fixed.setdefault(other, wanted)) != wanted:
                whose = f"fix.{other} is {written(present)}"
                if other not in said:  # a third pin asks for it
                    third = next(name for name in said if asked_by({name: said[name]}) == {other: present})
                    whose = f"fix.{third} with {other}: {written(present)}"
                mend = f"Write fix.{other}: {written(wanted)}, or leave it out." if other in said else "Give one."
                notes.fault(("fix", key), f"it goes with {other}: {written(wanted)}, and {whose}.", mend, value)
    stages = {fixed[key] for key in ("num_stages", "pipeline_parallel_size") if key in fixed}
    if len(stages) > 1:
        problem = "it contradicts fix.num_stages, which means the same."
        notes.fault(("fix", "pipeline_parallel_size"), problem, "Give one.", fixed["pipeline_parallel_size"])
    given = reading.spec.constraints.exclude.model_dump()
    excluded = {key: tuple(dict.fromkeys(values)) for key, values in given.items() if values}
    for key, values in excluded.items():
        if fixed.get(key) in values:
            whose = f"fix.{key} is {written(fixed[key])}"
            if key not in said:  # another pin asks for it
                pin = next(name for name in said if key in asked_by({name: said[name]}))
                whose = f"fix.{pin} goes with {key}: {written(fixed[key])}"
            problem = f"{whose}, which is excluded here."
            notes.fault(("constraints", "exclude", key), problem, "Give one of both.", fixed[key])
    return fixed, excluded


def _with_devices(
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


def _check_layers(notes: Notes, layers: Sequence[int], fixed: Mapping[str, Any], network: Transformer) -> None:
    """Refuse a cut that other layers, stages or chunks are pinned for.

    Parameters
    ----------
    layers
        Of every stage or chunk, in the order of the network.
    fixed
        All pins.
    """
    for problem, mend in _layer_faults(layers, fixed, network):
        notes.fault(("fix", "layers_per_stage"), problem, mend, list(layers))
        return


def _layer_faults(layers: Sequence[int], fixed: Mapping[str, Any], network: Transformer) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a cut, and how to mend it."""
    stages, chunks = cut_shape(layers, fixed)
    num_layers, depths = network.num_layers, network.num_mtp_layers
    schedule, count = fixed.get("schedule"), len(layers)
    if schedule == "dualpipe":
        yield "DualPipe runs the network both ways, over stages of equal layers.", "Leave it out, or the schedule."
    if stages * chunks != count:
        said = f"{stages} stages" + f" of {chunks} chunks" * (chunks > 1)
        yield f"there are {said}, and {count} numbers are listed.", f"List {stages * chunks}."
    if schedule is not None and (chunks > 1) != (schedule in ("interleaved", *TURNED)):
        what = f"there are {stages} stages of {chunks} chunks" if chunks > 1 else f"no stage has chunks, of {count}"
        mend = "Write fix.schedule: interleaved" if chunks > 1 else "Pin num_stages: a part of them"
        yield f"{what}, and fix.schedule is {schedule}.", f"{mend}, or leave one of both out."
    empty = [index for index, one in enumerate(layers) if not one]
    inside = [index for index in empty if chunks == 1 or index not in (0, count - 1)]
    if inside:
        what = "chunk" if chunks > 1 else "stage"
        yield f"{what} {inside[0] + 1} of {count} holds no layer, and each holds one at least.", "Write 1 or more."
    if sum(layers) != num_layers:
        yield f"they add up to {sum(layers)} layers, and the network has {num_layers}.", f"List {num_layers} layers."
    is_folded = schedule in TURNED
    if count and (fault := parted_depths(depths, layers, stages, is_folded=is_folded)) is not None:
        yield fault
