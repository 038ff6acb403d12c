"""From a checked spec to a :class:`planner.problem.Problem`.

Files read, names looked up, and every assumption said aloud.
"""

import copy
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner import data, zoo
from planner.cluster import Cluster, Device, MachineGroup
from planner.cost import Profile
from planner.dnn import Dnn
from planner.errors import Fault, SpecError
from planner.importers.graph_profile import read_graph_profile
from planner.importers.layer_trace import read_layer_trace
from planner.importers.measured import MeasuredLayer, MeasuredNetwork, build_measured, scaled_to
from planner.models.compute import optimizer_step_s, profile_from_flop
from planner.models.memory import Precision
from planner.networks import network_of
from planner.plan import Goal
from planner.problem import CompressionOption, Limits, Problem, Range, Training
from planner.spec import CalibrationSpec, CompressionOptionSpec, DnnSpec, FamilyName, RangeSpec, Spec
from planner.spec_calibration import calibration_of, read_calibration
from planner.spec_cluster import ClusterBuilder
from planner.spec_configuration import ConfigurationSpec
from planner.spec_source import Notes, Source, faults_of, read_source
from planner.spec_substitutions import check_names, drafts_of, per_sample, substitution_of
from planner.substitution import Substitution
from planner.units import Dimension, format_exact

__all__ = ["load", "problem_of"]

_UTILISATION = 0.5
_BATCH = 32
_INPUT_ELEMENT_BYTES = 4


def load(question: str | Path | Mapping[str, Any]) -> Problem:
    """Return the problem that a spec file, a plan file, or a mapping of the same keys asks.

    Raises
    ------
    SpecError
        With every fault of the text in one pass: file, line and column, field, value and mend.
    """
    if isinstance(question, Mapping):
        source = Source(data=copy.deepcopy(dict(question)), file="", folder=Path(), positions={})
    else:
        source = read_source(Path(question))
    if source.data.get("schema") == "planner.plan/1":
        source = _question_of_plan(source)
    return problem_of(source)


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
    question = {**plan["problem"], "configuration": given}
    return replace(source, data=question, positions={})


def problem_of(source: Source) -> Problem:
    """Return the problem of plain data: checked, looked up, resolved."""
    try:
        spec = Spec.model_validate(source.data)
    except ValidationError as error:
        raise SpecError.of(faults_of(error, source, Spec)) from None
    return _Builder(spec, source, Notes(source), copy.deepcopy(source.data)).build()


@dataclass(slots=True)
class _Builder:
    """The work of one :func:`problem_of`."""

    spec: Spec
    source: Source
    notes: Notes
    resolved: dict[str, Any]

    def build(self) -> Problem:
        """Return the problem, or raise all faults at once."""
        training_batch = self._batch_of_profile()
        key = next(key for key in ("zoo", "profile", "trace", "layers") if getattr(self.spec.dnn, key) is not None)
        network = self.notes.attempt(("dnn", key), lambda: self._network(training_batch))
        calibration = self.notes.attempt(
            ("calibration",), lambda: read_calibration(self.spec.calibration, self.source, self.resolved)
        )
        cluster = self.notes.attempt(("cluster",), lambda: ClusterBuilder(self.notes).build(self.spec.cluster))
        if network is None or calibration is None or cluster is None:
            raise SpecError.of(self.notes.faults)
        dnn, measured = network
        training = self._training(dnn, training_batch)
        goal = self._goal(training)
        fixed = {key: value for key, value in self.spec.fix.model_dump().items() if value is not None}
        if "device" in fixed:
            fixed["device"] = self.notes.attempt(("fix", "device"), lambda: _device_name(fixed["device"], cluster))
        training = self._with_devices(training, cluster)
        limits = self._limits(cluster, training)
        families = self._families()
        fitted = self.notes.attempt(("calibration",), lambda: calibration_of(calibration))
        profiles = self.notes.attempt(("dnn",), lambda: self._profiles(dnn, measured, cluster, calibration, training))
        if self.notes.faults or fitted is None or profiles is None:
            raise SpecError.of(self.notes.faults)
        drafts = drafts_of(
            self.spec.dnn.substitutions, dnn, profile_batch=training_batch, measured=measured, notes=self.notes
        )
        substitutions = tuple(
            substitution_of(one, self._profiles(one.block, one.measured, cluster, calibration, training))
            for one in drafts
        )
        self._check_substitutions(substitutions)
        self._doubts(dnn, cluster, calibration, measured)
        if self.notes.faults:
            raise SpecError.of(self.notes.faults)
        configuration, compression = self.spec.configuration, self.spec.compression
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
            compression=None if compression is None else _compression_of(compression),
            substitutions=substitutions,
            configuration=None if configuration is None else _block_of(configuration),
            variant=self.spec.variant,
            is_computation_measured=measured is not None or calibration.utilisation is not None,
            are_links_calibrated=_is_fitted(calibration),
            assumptions=tuple(dict.fromkeys(self.notes.assumptions)),
            warnings=tuple(dict.fromkeys(self.notes.warnings)),
            resolved=self.resolved,
        )
        if configuration is None or not (substitutions or "substitutions" in fixed):
            return problem
        given = configuration.substitutions
        return network_of(problem, fixed.get("substitutions", ()) if given is None else given)

    # -- the network -------------------------------------------------------------------------------------------------

    def _batch_of_profile(self) -> int:
        """Return the batch at which a measured profile was taken."""
        dnn = self.spec.dnn
        if dnn.profile_batch is not None:
            return dnn.profile_batch
        is_measured = dnn.profile or dnn.trace or any(layer.forward is not None for layer in dnn.layers or [])
        if not is_measured:
            return 1
        if dnn.batch_per_device is None:
            self.notes.fault(
                ("dnn",), "the batch at which the profile was measured is missing.", "Add profile_batch: 128, say."
            )
            return 1
        self.notes.assumptions.append(
            f"the profile was measured at the batch per device asked for, {dnn.batch_per_device}"
        )
        return dnn.batch_per_device

    def _network(self, profile_batch: int) -> tuple[Dnn, Profile | None]:
        """Return the network, and its profile where it was measured."""
        dnn = self.spec.dnn
        if dnn.zoo is not None:
            return zoo.build(dnn.zoo), None
        if dnn.profile is not None:
            found = read_graph_profile(self.source.folder / dnn.profile, batch_size=profile_batch)
        elif dnn.trace is not None:
            found = read_layer_trace(self.source.folder / dnn.trace, batch_size=profile_batch)
        else:
            found, is_measured = self._layers(dnn, profile_batch)
            if not is_measured:
                return found.dnn, None
        self.notes.warnings.extend(found.warnings)
        self._inline(found, profile_batch)
        return found.dnn, found.profile

    def _layers(self, dnn: DnnSpec, profile_batch: int) -> tuple[MeasuredNetwork, bool]:
        """Return the network of a ``layers:`` block, and whether its seconds were measured."""
        layers = dnn.layers or []
        rows = [
            MeasuredLayer(
                name=layer.name,
                kind=layer.kind,
                inputs=tuple(layer.inputs),
                forward_s=layer.forward or 0.0,
                backward_s=layer.backward or 0.0,
                output_bytes=layer.output * profile_batch,
                parameter_bytes=layer.parameters,
                num_multiply_adds=int(layer.multiply_adds),
                is_in_place=layer.in_place,
            )
            for layer in layers
        ]
        name = dnn.name or "layers"
        origin = self.source.data["dnn"].get("name", "layers of the spec")
        found = build_measured(name, rows, batch_size=profile_batch, origin=str(origin))
        is_measured = any(layer.forward is not None or layer.backward is not None for layer in layers)
        if is_measured and (
            counted := [layer.name for layer in layers if layer.multiply_adds and layer.forward is None]
        ):
            raise ValueError(
                f"layer {counted[0]!r} has multiply_adds and no seconds, others have seconds; give seconds of all "
                f"layers, "
                f"or of none"
            )
        if not is_measured and not found.dnn.num_multiply_adds:
            raise ValueError("no layer has seconds (forward, backward) or multiply_adds; give one or the other")
        return found, is_measured

    def _inline(self, found: MeasuredNetwork, profile_batch: int) -> None:
        """Put the layers into the resolved spec, seconds and bytes of one sample, so that it needs no other file."""
        profile = found.profile
        inputs = [layer.name for layer in found.dnn.layers if layer.kind == "input"]
        rows = []
        for layer, forward_s, backward_s in zip(
            found.dnn.layers, profile.forward_s.tolist(), profile.backward_s.tolist(), strict=True
        ):
            reading_s = profile.read_s or 0.0 if inputs and layer.name == inputs[0] else 0.0
            row = {
                "name": layer.name,
                "kind": layer.kind,
                "inputs": list(found.dnn.inputs_of(layer.name)),
                "forward": format_exact(forward_s + reading_s, Dimension.TIME),
                "backward": format_exact(backward_s, Dimension.TIME),
                "parameters": f"{layer.num_trainable * 4} B",
                "output": f"{layer.num_output_elements * 4} B",
            }
            rows.append({**row, "in_place": True} if layer.is_in_place else row)
        old = self.resolved["dnn"]
        kept = {
            key: value
            for key, value in old.items()
            if key not in ("profile", "trace", "layers", "profile_batch", "name")
        }
        if given := self.spec.dnn.substitutions:
            pairs = zip(old["substitutions"], given, strict=True)
            kept["substitutions"] = [per_sample(raw, one, profile_batch) for raw, one in pairs]
        self.resolved["dnn"] = {"name": found.dnn.name, "layers": rows, "profile_batch": 1, **kept}

    def _profiles(
        self, dnn: Dnn, measured: Profile | None, cluster: Cluster, calibration: CalibrationSpec, training: Training
    ) -> dict[str, Profile]:
        """Return the seconds of every layer on every device of the cluster."""
        precision = Precision.of(training.dtype, training.optimizer)
        profiles = {}
        measured_on = None if measured is None else self._profile_device(cluster)
        for group in cluster.machine_groups:
            device = group.device
            update_s = calibration.update
            if update_s is None:
                update_s = optimizer_step_s(dnn.num_trainable, device, precision)
            if measured is not None:
                assert measured_on is not None
                scaled, note = scaled_to(measured, measured_on, device, dtype=training.dtype)
                profiles[device.name] = replace(scaled, update_s=update_s)
                if note:
                    (self.notes.warnings if scaled is measured else self.notes.assumptions).append(note)
                continue
            profiles[device.name] = profile_from_flop(
                dnn,
                device,
                dtype=training.dtype,
                utilisation=calibration.utilisation or _UTILISATION,
                flop_per_multiply_add=calibration.flop_per_multiply_add,
                utilisation_by_kind=calibration.utilisation_by_kind,
                update_s=update_s,
            )
        return profiles

    def _profile_device(self, cluster: Cluster) -> Device:
        """Return the device on which the profile was measured: the one given, the only one, or the first that trains.

        It need not be in the cluster.
        """
        known = {group.device.name: group.device for group in cluster.machine_groups}
        first = _training_groups(cluster, None)[0].device
        if (given := self.spec.dnn.profile_device) is not None:
            found = known.get(given) or self.notes.attempt(("dnn", "profile_device"), lambda: data.device(given))
            return found or first
        if len(known) > 1:
            self.resolved["dnn"]["profile_device"] = first.name
            self.notes.assumptions.append(
                f"the profile was measured on {first.name}; set dnn.profile_device if it was another device"
            )
        return first

    def _check_substitutions(self, allowed: tuple[Substitution, ...]) -> None:
        """Refuse pinned or configured substitutions that cannot be; not where the allowed ones are wrong already."""
        given = self.spec.configuration
        for path, names in (
            (("fix", "substitutions"), self.spec.fix.substitutions),
            (("configuration", "substitutions"), given.substitutions if given else None),
        ):
            if not self.notes.faults:
                self.notes.attempt(path, lambda names=names: check_names(names or (), allowed))  # type: ignore[misc]

    # -- training, goal, limits --------------------------------------------------------------------------------------

    def _training(self, dnn: Dnn, profile_batch: int) -> Training:
        """Return the batch, the data set and the types, with what had to be assumed."""
        spec, keep = self.spec.dnn, self.resolved["dnn"]
        batch_per_device = spec.batch_per_device
        if batch_per_device is None and spec.global_batch is None and spec.max_global_batch is None:
            batch_per_device = profile_batch if profile_batch > 1 else _BATCH
            keep["batch_per_device"] = batch_per_device
            self.notes.assumptions.append(f"batch per device: {batch_per_device}")
        if batch_per_device and spec.max_global_batch and batch_per_device > spec.max_global_batch:
            self.notes.fault(
                ("dnn", "max_global_batch"), "it is less than batch_per_device.", "Raise it.", spec.max_global_batch
            )
        dataset_samples = spec.dataset_samples or dnn.dataset_samples
        if spec.dataset_samples is None and dataset_samples is not None:
            keep["dataset_samples"] = dataset_samples
            self.notes.assumptions.append(
                f"data set: {dataset_samples:,} samples, as the network is usually trained on"
            )
        device_sample_bytes = dnn.num_input_elements * _INPUT_ELEMENT_BYTES
        return Training(
            batch_per_device=batch_per_device,
            global_batch_size=spec.global_batch,
            max_global_batch_size=spec.max_global_batch,
            dataset_samples=dataset_samples,
            epochs=spec.epochs,
            sample_bytes=device_sample_bytes if spec.sample_bytes is None else spec.sample_bytes,
            is_sample_size_given=spec.sample_bytes is not None,
            device_sample_bytes=device_sample_bytes,
            dtype=spec.dtype,
            optimizer=spec.optimizer,
        )

    def _goal(self, training: Training) -> Goal:
        """Return what is minimised: what the spec says, else epoch time, else iteration time."""
        name = self.spec.objective
        if name is None:
            name = "epoch_time" if training.dataset_samples else "iteration_time"
            self.notes.assumptions.append(f"objective: {name}")
        self.resolved["objective"] = name
        if name != "iteration_time" and training.dataset_samples is None:
            self.notes.fault(("dnn",), f"{name} needs the size of the data set.", "Add dataset_samples: 1281167, say.")
        if name == "training_time" and training.epochs is None:
            self.notes.fault(("dnn",), "training_time needs a number of epochs.", "Add epochs: 90, say.")
        if name == "iteration_time" and training.max_global_batch_size is not None:
            mend = "Ask for epoch_time, or fix dnn.global_batch."
            self.notes.fault(
                ("objective",),
                "with a batch that may vary, the smallest one is trivially fastest per iteration.",
                mend,
                name,
            )
        return Goal(name=name)

    def _with_devices(self, training: Training, cluster: Cluster) -> Training:
        """Return the training with the devices that a batch per device is meant for; refuse a trivial question.

        On unequal devices it sets the global batch alone: which of them work, and their shares, are decisions.
        """
        given, fix = self.spec.constraints, self.spec.fix
        batch = training.batch_per_device
        if batch is None or training.max_global_batch_size is not None:
            return training
        is_open = any(one is not None and one.exactly is None for one in (given.devices, given.machines))
        if is_open and fix.num_devices is None:
            name = "machines" if given.devices is None or given.devices.exactly is not None else "devices"
            problem = (
                "with a fixed batch per device, fewer devices are trivially fastest per iteration, and more per epoch."
            )
            mend = "Fix dnn.global_batch, or state dnn.max_global_batch, or say how many exactly."
            self.notes.fault(("constraints", name), problem, mend)
            return training
        groups = _training_groups(cluster, fix.device)
        exactly = None if given.devices is None else given.devices.exactly
        number = fix.num_devices or exactly or self._all_devices(groups, _range(given.machines))
        alike = {(group.device.name, group.devices_per_machine) for group in groups}
        if len(alike) <= 1 or fix.devices_per_machine:
            return replace(training, num_devices=number)
        self.notes.assumptions.append(
            f"global batch: {batch * number}, {batch} samples for each of {number} unequal devices; how many of them "
            f"work, and on which shares, is planned"
        )
        return replace(training, batch_per_device=None, global_batch_size=batch * number)

    def _limits(self, cluster: Cluster, training: Training) -> Limits:
        """Return the limits; refuse those that no plan can meet."""
        given = self.spec.constraints
        devices, machines = _range(given.devices), _range(given.machines)
        for name, wanted, most in (
            ("devices", devices, cluster.num_devices),
            ("machines", machines, cluster.num_machines),
        ):
            if wanted.least > most:
                what = f"at least {wanted.least} are asked for, and the cluster has {most}."
                self.notes.fault(("constraints", name), what, "Ask for fewer, or add machines.", wanted.least)
        if given.deadline is not None and training.dataset_samples is None:
            self.notes.fault(
                ("constraints", "deadline"), "a deadline needs the size of the data set.", "Add dnn.dataset_samples."
            )
        return Limits(
            devices=devices,
            machines=machines,
            memory_per_device_bytes=given.memory_per_device,
            deadline_s=given.deadline,
            max_staleness=float("inf") if given.max_staleness == "unbounded" else given.max_staleness,
        )

    def _families(self) -> tuple[str, ...]:
        """Return the families that may answer; refuse to forbid all that are asked for."""
        asked = self.spec.families or typing.get_args(FamilyName)
        forbidden = self.spec.constraints.forbidden_families
        if not (allowed := tuple(name for name in asked if name not in forbidden)):
            self.notes.fault(
                ("constraints", "forbidden_families"), f"no family is left of {', '.join(asked)}.", "Allow one."
            )
        return allowed

    def _all_devices(self, groups: Sequence[MachineGroup], machines: Range) -> int:
        """Return how many devices there are, within what is pinned."""
        fix = self.spec.fix
        per_machine = fix.devices_per_machine
        number = fix.num_machines or (machines.most if machines.most is not None else None)
        if number is not None:
            return number * (per_machine or min((group.devices_per_machine for group in groups), default=1))
        return sum(group.count * (per_machine or group.devices_per_machine) for group in groups)

    def _doubts(self, dnn: Dnn, cluster: Cluster, calibration: CalibrationSpec, measured: Profile | None) -> None:
        """Warn of whatever makes the figures doubtful."""
        used = calibration.utilisation
        devices = {group.device.name: group.device for group in cluster.machine_groups}
        for device in devices.values():
            if not device.is_verified:
                self.notes.warnings.append(f"the figures of {device.name} are unverified ({device.source})")
        if measured is None and used is None:
            self.notes.assumptions.append(f"utilisation of the devices: {_UTILISATION}")
            self.notes.warnings.append(
                "the devices are uncalibrated: give calibration.utilisation, or a measured profile"
            )
        if used is not None and used > 1:
            self.notes.warnings.append(
                f"a utilisation of {used:.4g} is above 1: right only for counts of multiply-adds, or algorithms "
                f"that save FLOP"
            )
        by_kind = calibration.utilisation_by_kind
        for kind in by_kind:
            if kind not in {layer.kind for layer in dnn.layers}:
                known = ", ".join(sorted({layer.kind for layer in dnn.layers if layer.num_multiply_adds}))
                self.notes.fault(
                    ("calibration", "utilisation_by_kind", kind),
                    f"{dnn.name} has no layer of this kind.",
                    f"Known: {known}.",
                )
        for name, share in {"bandwidth_efficiency": calibration.bandwidth_efficiency or 0, **by_kind}.items():
            if share > 1:
                self.notes.warnings.append(f"calibration: {name} {share:.4g} is above 1")
        for device in devices.values():
            if device.memory_bytes == float("inf"):
                self.notes.warnings.append(f"the memory of {device.name} is not known: nothing is checked against it")
        graph = cluster.graph
        if graph.number_of_edges() >= graph.number_of_nodes():
            self.notes.warnings.append(
                "the network has cycles: rings are laid on its widest spanning tree, other links idle"
            )
        if cluster.num_devices > 1 and not _is_fitted(calibration):
            self.notes.warnings.append("the links are uncalibrated: their nominal bandwidth is taken to be reached")


def _training_groups(cluster: Cluster, device: str | None) -> list[MachineGroup]:
    """Return the groups whose devices may train: of the pinned type, and no CPUs beside accelerators."""
    groups = [group for group in cluster.machine_groups if device in (None, group.device.name)]
    has_accelerator = any(group.device.kind != "cpu" for group in groups)
    return [group for group in groups if not (has_accelerator and group.device.kind == "cpu")]


def _compression_of(given: CompressionOptionSpec) -> CompressionOption:
    """Return what may be compressed."""
    return CompressionOption(scale_s=given.time, most_removed=given.at_most)


def _block_of(configuration: ConfigurationSpec) -> tuple[str, dict[str, Any]]:
    """Return the family of a configuration, and its block."""
    return configuration.family, getattr(configuration, configuration.family).model_dump()


def _is_fitted(calibration: CalibrationSpec) -> bool:
    """Whether anything about the links was measured."""
    return bool(calibration.bandwidth_efficiency or calibration.curves or calibration.piecewise)


def _device_name(given: str, cluster: Cluster) -> str:
    """Return a device's proper name; a device that only the spec knows keeps its own."""
    known = {group.device.name for group in cluster.machine_groups}
    return given if given in known else data.device(given).name


def _range(given: RangeSpec | None) -> Range:
    """Return the range of a constraint; everything where there is none."""
    if given is None:
        return Range()
    if given.exactly is not None:
        return Range(least=given.exactly, most=given.exactly)
    return Range(least=given.at_least or 1, most=given.at_most)
