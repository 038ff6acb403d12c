"""The ``calibration`` block of a spec, the seconds of layers that follow from it, and what makes both doubtful.

The block, or the file that it names, becomes a :class:`planner.problem.Calibration`. Seconds of a layer on a device
are, in this order: measured there; measured elsewhere and scaled; FLOP over a share of the device's peak, where one is
given; of a transformer in short numbers by the rooflines that ``hybrid`` counts with; else by rooflines of kernels.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from planner import data
from planner.cluster import Cluster, Device, MachineGroup
from planner.cost import Affine, Band, Profile, TransferCost, Wait
from planner.data.fits import (
    fused_steps,
    kernel_shares,
    links_reached,
    seconds_band,
    transformer_band,
    transformer_constants,
    transformer_ranges,
    transformer_rates,
)
from planner.dnn import Dnn
from planner.errors import Fault, SpecError
from planner.frozen import frozen
from planner.importers.text import read_cells
from planner.links import LinkRates
from planner.models.communication import MeasuredCurve, PiecewiseLogLinear
from planner.models.compute import (
    UNCALIBRATED,
    Constants,
    DeviceRates,
    Software,
    device_shares,
    optimizer_step_s,
    profile_from_flop,
    scaled_to,
)
from planner.models.kernels import Execution, Shares, network_profile, work_by_layer
from planner.models.memory import Precision
from planner.models.operators import is_known
from planner.models.optimizers import OPTIMIZERS
from planner.models.programs import PROGRAMS
from planner.models.roofline import DeviceLimits, peak_flop_per_s, reached_bytes_per_s
from planner.models.tiers import is_narrowed
from planner.models.transformer_time import transformer_profile
from planner.names import OF_TRANSFORMERS, fold
from planner.problem import Assumption, Calibration, Limits, Training
from planner.question.blocks import MOST_POINTS, CalibrationSpec, CurveSpec
from planner.question.low_precision import note_cuda_graphs, note_low_precision
from planner.question.source import Source, faults_of, nearest, read_source
from planner.question.spec import Reading
from planner.units import Dimension, format_exact, parse
from planner.words import joined, percent_words

UTILISATION = 0.5  # of a device's peak, where a share is used and none is given
# Of each device, under the hybrid family, where nothing is given. What the driver keeps: 0.75 GiB (PyTorch finds 79.25
# of 80 GiB on an A100, as its messages of lack of memory say). Context and PyTorch's kernels: 1.31 GiB (Hugging Face,
# "Model training anatomy"). NCCL: four communicators of 16 channels, 4 MiB (its NCCL_BUFFSIZE) to send and to receive:
# 0.5 GiB, reckoned. The rest, 0.44 GiB, for pieces of free memory: assumed. Of small devices no more than a twentieth,
# assumed, so that they can be asked about at all.
TRANSFORMER_RESERVE_BYTES = 3.0 * 2**30
TRANSFORMER_RESERVE_SHARE = 0.05
# With experts, whose arrays alter their sizes: free memory in pieces, over the device's. PyTorch reserved more than it
# gave out by 3.3 of 80 GiB (Megatron-Bridge, pull request 5266: 75.3 and 72.1 GiB, Nemotron 3.5 Nano), 8.4 of 186
# (marin, issue 7668: 156,592 and 147,967 MiB) and 3.4 of 80 (Bridge's guide of recomputation: 40 and 36.6 GB).
EXPERT_PIECES_SHARE = 0.042

_SHORT = ("bf16", "fp16")  # the numbers of all fits
_FORMATS = ("contiguous", "channels_last")  # of images, where nothing is given: of programs as they stand, and compiled
_FITTED_TO = "resnet50"  # the network of the measured steps of compiled programs
_EXECUTION = "eager"  # where nothing is given: as PyTorch runs a network that nobody compiles
_PROGRAM = CalibrationSpec.model_fields["program"].default
# Of what was assumed, another value whose effect is told: a program that is used as often, links as often measured.
_OTHER_PROGRAM, _OTHER_EXECUTION = "torchtitan", "compiled"
_OTHER_TRANSPORT = {"tcp": "rdma", "rdma": "tcp"}
_MOST_TCP_BYTES_PER_S = 25e9 / 8  # wider network cards are taken to be for RDMA, where nothing is given


def read_calibration(given: str | CalibrationSpec, source: Source, resolved: dict[str, Any]) -> CalibrationSpec:
    """Return the calibration block, read from its file where the spec names one; put it into the resolved spec."""
    path: tuple[str, ...] = ("program",)
    if isinstance(given, CalibrationSpec):
        block, calibration, path = source.data.get("calibration", {}), given, ("calibration", "program")
    else:
        source = read_source(source.folder / given)
        block = _block_of(source)
        try:
            calibration = CalibrationSpec.model_validate(block)
        except ValidationError as error:
            raise SpecError.of(faults_of(error, source, CalibrationSpec)) from None
    program = calibration.program
    if program != _PROGRAM and program not in (programs := transformer_rates()["software"]):  # which take long to read
        raise source.error(path, f"{program!r} is not a known program.", nearest(program, programs), program)
    curves = [_curve_with_points(curve, source.folder) for curve in calibration.curves]
    if block:
        resolved["calibration"] = dict(block)
    if curves:
        resolved["calibration"]["curves"] = [
            {
                "num_devices": curve.num_devices,
                "points": [
                    [format_exact(size, Dimension.DATA), format_exact(seconds, Dimension.TIME)]
                    for size, seconds in curve.points or []
                ],
            }
            for curve in curves
        ]
    return calibration.model_copy(update={"curves": curves})


def _block_of(own: Source) -> dict[str, Any]:
    """Return a file's block; what `planner calibrate --measure --json` wrote is translated into the block's keys."""
    data: dict[str, Any] = own.data
    if data.get("schema") != "planner.calibration/1":
        return data
    try:
        sizes = [[f"{row['working_set_bytes']!r} B", f"{row['seconds']!r} s"] for row in data["multiply_add"]]
        return {
            "cores": data.get("num_cores"),
            "activation": f"{data.get('activation_s')!r} s",
            "error": f"{data.get('error_s')!r} s",
            "multiply_add": sizes,
            "interference": [[row["num_threads"], row["factor"]] for row in data["interference"]],
            "source": "planner calibrate --measure",
        }
    except (KeyError, TypeError):
        problem = "this is no whole measurement: multiply_add or interference lacks rows, or figures of a row."
        mend = "Measure again: planner calibrate --measure --json."
        raise own.error(("schema",), problem, mend) from None


def calibration_of(spec: CalibrationSpec) -> Calibration:
    """Return the fitted parameters."""
    curves: dict[int, TransferCost] = {}
    for given in spec.piecewise:
        if given.threshold == 0 and given.offset >= 0:  # a straight line, for which solvers are faster
            curves[given.num_devices] = Affine(startup_s=given.offset, per_byte_s=1 / given.bandwidth)
            continue
        curves[given.num_devices] = PiecewiseLogLinear(
            log_slope_s=given.log_slope,
            log_offset_s=given.log_offset,
            per_byte_s=1 / given.bandwidth,
            offset_s=given.offset,
            threshold_bytes=given.threshold,
        )
    for curve in spec.curves:
        if curve.num_devices in curves:
            raise ValueError(f"there are two curves for {curve.num_devices} devices; keep one")
        sizes, seconds = zip(*(curve.points or []), strict=True)
        curves[curve.num_devices] = MeasuredCurve(size_bytes=sizes, seconds=seconds)
    # A reserve that is given, even 0, counts for any device; else a typical one, and a share of memory.
    has_reserve = "memory_reserve" in spec.model_fields_set
    reserve_share: dict[str, Any] = {}
    if not has_reserve:
        reserve_share = {
            "transformer_reserve_share": TRANSFORMER_RESERVE_SHARE,
            "expert_pieces_share": EXPERT_PIECES_SHARE,
        }
    return Calibration(
        transport=spec.transport,
        overhead_s=spec.overhead,
        negotiate_s=spec.negotiate,
        algorithms=tuple(dict.fromkeys(spec.algorithms)),
        all_reduce_curves=curves,
        aggregation=spec.aggregation,
        wait=Wait(spec.wait),
        timeout_s=float("inf") if spec.timeout is None else spec.timeout,
        fusion_unit=spec.fusion_unit,
        split_tensors=spec.split_tensors,
        max_overlap=spec.max_overlap,
        strategy=spec.strategy,
        is_prefetch_pipelined=spec.prefetch == "pipelined",
        memory_reserve_bytes=spec.memory_reserve,
        transformer_reserve_bytes=spec.memory_reserve if has_reserve else TRANSFORMER_RESERVE_BYTES,
        **reserve_share,
        program=spec.program,
        gradients=spec.gradients,
        cuda_graphs=spec.cuda_graphs,
        expert_imbalance=spec.expert_imbalance,
        straggler_deviation_s=spec.straggler_deviation,
        queue=None if spec.queue is None else spec.queue.build(),
        utilisation=spec.utilisation or UTILISATION,
        num_cores=spec.cores,
        activation_s=spec.activation,
        error_s=spec.error,
        multiply_add_s=tuple(spec.multiply_add),
        interference=tuple(spec.interference),
    )


def _curve_with_points(curve: CurveSpec, folder: Path) -> CurveSpec:
    """Return the curve with its points, read from its file where it names one, sorted by size."""
    if curve.file is None:
        points = sorted(curve.points or [])
    else:
        path = folder / curve.file
        faults, points = [], []
        for number, row in read_cells(path, most_rows=MOST_POINTS):
            if row[0].strip() == "size_bytes":
                continue
            try:
                size, seconds = (float(cell) for cell in row)
                points.append((parse(f"{size!r} B", Dimension.DATA), parse(f"{seconds!r} s", Dimension.TIME)))
            except ValueError:
                mend = "Write size_bytes,seconds, e.g. 4096,0.00012."
                faults.append(Fault(file=str(path), line=number, problem=f"{','.join(row)!r} is no point.", mend=mend))
        if faults:
            raise SpecError.of(faults)
        points.sort()
    return curve.model_copy(update={"points": points})


# --- Seconds of every layer on every device, and warnings of them


def is_fitted(calibration: CalibrationSpec) -> bool:
    """Whether anything about the links was measured."""
    return bool(calibration.bandwidth_efficiency or calibration.curves or calibration.piecewise)


def samples_per_device(training: Training, cluster: Cluster, limits: Limits, pinned: int | None) -> int:
    """Return the samples of a step on one device, where all that may be used share the batch; at least 1."""
    whole = training.fixed_batch_size or training.max_global_batch_size or 1
    most = limits.devices.pinned(pinned).most
    used = cluster.num_devices if most is None else min(most, cluster.num_devices)
    return training.batch_per_device or max(1, whole // max(1, used))


def transport_of(given: CalibrationSpec, cluster: Cluster) -> str:
    """Return how machines send: as the spec says, else by their widest network card."""
    machines = {group.name for group in cluster.machine_groups}
    rates = [
        link.bandwidth_bytes_per_s
        for *ends, link in cluster.links
        if machines.intersection(ends) and not link.is_scale_up
    ]
    return given.transport or ("tcp" if max(rates, default=0.0) <= _MOST_TCP_BYTES_PER_S else "rdma")


def _machine_rates(cluster: Cluster) -> list[tuple[MachineGroup, float]]:
    """Return each group that has a link, and what the network cards of a machine are sold by together."""
    rates = [(group, cluster.own_link(group.name).bandwidth_bytes_per_s) for group in cluster.machine_groups]
    return [(group, rate) for group, rate in rates if rate < float("inf")]


def _bound_words(links: LinkRates, machine: MachineGroup, nominal_bytes_per_s: float) -> str:
    """Return what bounds what a machine sends, whose network cards together are sold by some rate."""
    most, usual = links.most_bytes_per_s(machine), links.network_share * nominal_bytes_per_s
    found, least = "", machine.num_nics * links.least_bytes_per_card
    if usual < min(links.least_bytes_per_s(nominal_bytes_per_s, machine), most):
        share = percent_words(links.least_share)
        found = f", but no less than TCP: {share}, up to {8e-9 * least:.3g} Gbit/s a machine"
    return found + (f", at most {8e-9 * most:.3g} Gbit/s a machine" if most < inf else "")


@frozen
class Profiler:
    """Profiles networks on the devices of one cluster, and tells what makes the figures doubtful."""

    reading: Reading
    cluster: Cluster
    calibration: CalibrationSpec
    training: Training
    batch_per_device: int

    def links(self, *, is_by_rooflines: bool) -> LinkRates:
        """Return what links reach: what the spec gives, and where it gives nothing what others measured.

        A share between machines alone counts inside them, too; but seconds by rooflines fitted to transformers go with
        the share inside that was fitted beside them.
        """
        scale_up = (link.bandwidth_bytes_per_s for *_, link in self.cluster.links if link.is_scale_up)
        found = links_reached(transport_of(self.calibration, self.cluster))
        found = replace(found, scale_up_bytes_per_s=min(scale_up, default=inf))
        share, inside = self.calibration.bandwidth_efficiency, self.calibration.inside_efficiency
        if share is not None:
            found = found.with_network(share)
        if inside is None and not is_by_rooflines:
            inside = share
        return found if inside is None else found.with_inside(inside)

    def has_rooflines(self, dnn: Dnn) -> bool:
        """Whether seconds that were not measured come from the rooflines fitted to transformers in short numbers."""
        is_given = self.has_share_of_peak or self.calibration.execution is not None
        is_short = self.training.dtype in _SHORT
        return dnn.transformer is not None and bool(dnn.repeats) and is_short and not is_given

    @property
    def has_share_of_peak(self) -> bool:
        """Whether seconds that were not measured are FLOP over a share of the device's peak, as the spec says."""
        given = self.calibration
        return bool(given.utilisation is not None or given.utilisation_by_kind or given.flop_per_multiply_add != 2)

    @property
    def execution(self) -> str:
        """How the network is run."""
        return self.calibration.execution or _EXECUTION

    def profiles(self, dnn: Dnn, measured: Profile | None) -> dict[str, Profile]:
        """Return the seconds of every layer on every device of the cluster; where asked, the pessimistic ones."""
        found = self._expected(dnn, measured)
        if not self.calibration.pessimistic:
            return found
        if missing := [name for name, profile in found.items() if profile.band is None]:
            raise ValueError(
                f"pessimistic: how far the seconds on {', '.join(missing)} are off is not known; leave it out, or have "
                "the seconds of the layers estimated by rooflines"
            )
        slow = {}
        for name, profile in found.items():
            assert profile.band is not None, "refused above"
            slow[name] = replace(profile.slower(1 + profile.band.high), band=profile.band.from_its_slow_end)
            self.reading.notes.assumptions.append(
                f"seconds on {name} are {1 + profile.band.high:.3g} times the expected ones, the slow end of their "
                f"error's band (calibration.pessimistic)"
            )
        return slow

    def transformer_figures(self) -> dict[str, object]:
        """Return the figures that the family ``hybrid`` counts with; where asked, how much slower each device is."""
        figures: dict[str, Any] = {**transformer_rates(), "ranges": transformer_ranges()}
        if self.calibration.pessimistic:
            names = {group.device.name for group in self.cluster.machine_groups}
            figures["slowdowns"] = {name: 1 + transformer_band(name).high for name in names}
        return figures

    def _expected(self, dnn: Dnn, measured: Profile | None) -> dict[str, Profile]:
        """Return the expected seconds."""
        devices = {group.device.name: group.device for group in self.cluster.machine_groups}
        if measured is not None:
            measured_on = self._profile_device(measured)
            return {name: self._scaled(dnn, measured, measured_on, device) for name, device in devices.items()}
        if self.has_rooflines(dnn):
            return {name: self._by_rooflines(dnn, device) for name, device in devices.items()}
        if not self.has_share_of_peak:
            return {name: self._by_kernels(dnn, device) for name, device in devices.items()}
        return {
            name: profile_from_flop(
                dnn,
                device,
                dtype=self.training.dtype,
                utilisation=self.calibration.utilisation or UTILISATION,
                flop_per_multiply_add=self.calibration.flop_per_multiply_add,
                utilisation_by_kind=self.calibration.utilisation_by_kind,
                update_s=self._update_s(dnn, device),
            )
            for name, device in devices.items()
        }

    def _by_kernels(self, dnn: Dnn, device: Device) -> Profile:
        """Return the seconds that the rooflines of kernels give."""
        dtype, is_fused = self.training.dtype, self.execution == "compiled"
        has_channels_last = (self.calibration.memory_format or _FORMATS[is_fused]) == "channels_last"
        limits = DeviceLimits.of(device, dtype)
        profile = _kernel_profile(dnn, limits, dtype, is_fused=is_fused, has_channels_last=has_channels_last)
        slowdown = fused_steps(device.name)["slowdown"] if is_fused and dtype in _SHORT else 1.0
        return replace(
            profile,
            forward_s=slowdown * profile.forward_s,
            backward_s=slowdown * profile.backward_s,
            update_s=self._update_s(dnn, device),
            origin=f"rooflines of {device.name}'s kernels",
            band=self._band(dnn, device.name),
        )

    def _band(self, dnn: Dnn, device: str) -> Band:
        """Return how far the seconds that the rooflines of kernels give are off."""
        is_compiled, is_transformer = self.execution == "compiled", dnn.transformer is not None
        return seconds_band(self.training.dtype, is_compiled=is_compiled, device=device, is_transformer=is_transformer)

    def _by_rooflines(self, dnn: Dnn, device: Device) -> Profile:
        """Return the seconds that the family ``hybrid`` counts with."""
        assert dnn.transformer is not None, "asked by has_rooflines"
        rates, dtype = transformer_rates(), self.training.dtype
        program = self.calibration.program
        has_other_links = self.calibration.inside_efficiency is not None or self._has_other_links()  # said apart
        has_other_links = has_other_links or self.cluster.num_devices == 1  # or there is none
        what = "seconds of layers" if has_other_links else "seconds of layers and shares of the links' bandwidth"
        self.reading.notes.assumptions.append(f"{what}, for all families: as fitted to transformers")
        found = transformer_profile(
            dnn,
            rates=DeviceRates.of(device, dtype, device_shares(device, dtype, rates)),
            software=Software(name=program, **rates["software"][program]).stepped_by(
                OPTIMIZERS[self.training.optimizer]
            ),
            constants=Constants(**rates["constants"]),
            update_s=self.calibration.update,
        )
        return replace(found, band=transformer_band(device.name))

    def _scaled(self, dnn: Dnn, measured: Profile, measured_on: Device, device: Device) -> Profile:
        """Return measured seconds on another device, and say how, or that they are taken as they are."""
        scaled, note = scaled_to(measured, measured_on, device, dtype=self.training.dtype)
        notes = self.reading.notes
        if note:
            (notes.warnings if scaled is measured else notes.assumptions).append(note)
        return replace(scaled, update_s=self._update_s(dnn, device))

    def _update_s(self, dnn: Dnn, device: Device) -> float:
        """Return the optimiser's step: as calibrated, else the time to move its memory."""
        if self.calibration.update is not None:
            return self.calibration.update
        precision = Precision.of(self.training.dtype, self.training.optimizer)
        return optimizer_step_s(dnn.num_trainable, device, precision)

    def _profile_device(self, measured: Profile) -> Device:
        """Return the device on which the profile was measured: the one given, the only one, or the first that trains.

        It need not be in the cluster.
        """
        known = {group.device.name: group.device for group in self.cluster.machine_groups}
        first = self.cluster.training_groups()[0].device
        if (given := self.reading.spec.dnn.profile_device) is not None:
            found = known.get(given) or self.reading.notes.attempt(
                ("dnn", "profile_device"), lambda: data.device(given)
            )
            return found or first
        if measured.measured_on and not _is_named(measured.measured_on, first):
            self.reading.notes.warnings.append(
                f"the seconds were measured on {measured.measured_on}, as the trace says, and are taken for those of "
                f"{first.name}; measure there, or set dnn.profile_device to the device that was measured"
            )
        if len(known) > 1:
            self.reading.resolved["dnn"]["profile_device"] = first.name
            self.reading.notes.assumptions.append(
                f"the profile was measured on {first.name}; set dnn.profile_device if it was another device"
            )
        return first

    def note_warnings(self, dnn: Dnn, measured: Profile | None, families: Sequence[str]) -> None:
        """Say which program the figures are those of, and warn of whatever makes them doubtful."""
        is_by_rooflines = measured is None and self.has_rooflines(dnn)
        is_hybrid_asked = dnn.transformer is not None and OF_TRANSFORMERS in families
        devices = {group.device.name: group.device for group in self.cluster.machine_groups}.values()
        notes, given = self.reading.notes, self.calibration
        if is_hybrid_asked or is_by_rooflines:
            self._note_program()
        self._note_gradients(is_hybrid_asked=is_hybrid_asked)
        layers = 0 if dnn.transformer is None else dnn.transformer.num_layers
        note_low_precision(self.reading, self.training.low, given.program, layers)
        note_cuda_graphs(self.reading, self.training.low, given, devices, is_hybrid_asked=is_hybrid_asked)
        # transformers' figures are of RDMA on wide cards; where other links are reckoned with, this is said
        links, is_given = self.links(is_by_rooflines=is_by_rooflines), given.inside_efficiency is not None
        is_given = is_given or links.is_network_given
        are_links_noted = is_given or ((is_by_rooflines or is_hybrid_asked) and self._has_other_links())
        if not is_hybrid_asked or tuple(families) != (OF_TRANSFORMERS,):  # which has seconds and links of its own
            if is_by_rooflines:
                fitted = transformer_rates()["devices"]
                notes.warnings += [f"{one.name} {UNCALIBRATED}" for one in devices if one.name not in fitted]
            else:
                names = [one.name for one in devices]
                if measured is None and not self.has_share_of_peak:
                    self._note_kernels(dnn, names)
                else:
                    self._note_share_of_peak(dnn, is_measured=measured is not None)
                if self.cluster.num_devices > 1 and not is_fitted(given):
                    notes.warnings.append(
                        "the links are uncalibrated: what others measured of their kind is taken to be reached"
                    )
                    are_links_noted = True
        if measured is not None and given.execution is not None:
            notes.warnings.append("calibration.execution alters nothing: the seconds of the layers were measured")
        if are_links_noted and self.cluster.num_devices > 1:
            self._note_links(links)
        self._note_given(dnn)
        for device in devices:
            if device.memory_bytes == float("inf"):
                notes.warnings.append(f"the memory of {device.name} is not known: nothing is checked against it")
        if is_hybrid_asked and is_narrowed(self.cluster):
            text = (
                "hybrid counts the network between machines as one tier, as wide as its narrowest place: it is neither "
                "one switch nor equal leaf switches under one spine, and machines that are closer to each other gain "
                "nothing"
            )
            field = ("cluster", "links" if "nodes" in notes.source.data["cluster"] else "machines")
            notes.key_assumptions.insert(0, Assumption(text=text, field=field, flag=".".join(field)))
            notes.assumptions.insert(0, text)
            notes.warnings.append(text)

    def _has_other_links(self) -> bool:
        """Whether machines are taken to send otherwise than those to which transformers were fitted."""
        links, share = self.links(is_by_rooflines=True), transformer_constants()["outside_efficiency"]
        rates = _machine_rates(self.cluster)
        return any(links.network_bytes_per_s(rate, group) != rate * share for group, rate in rates)

    def _note_links(self, links: LinkRates) -> None:
        """Say by what machines are taken to send, and what links reach: of each kind of machine where these differ."""
        notes, transport = self.reading.notes, transport_of(self.calibration, self.cluster)
        groups, rates = self.cluster.machine_groups, _machine_rates(self.cluster)
        is_said = self.calibration.inside_efficiency is not None or not self.cluster.links

        def inside_words(group: MachineGroup) -> str:
            if group.inside is None or group.devices_per_machine == 1:
                return ""
            share = percent_words(links.share_inside(group))
            return f"; links reach {share} inside machines" + " (calibration.inside_efficiency)" * is_said

        if not self.cluster.links:
            notes.assumptions.append(inside_words(groups[0]).removeprefix("; "))
            return
        by_words: dict[str, list[MachineGroup]] = {}
        for group in groups:
            bounds = [_bound_words(links, one, rate) for one, rate in rates if one is group]
            by_words.setdefault(f"{''.join(bounds)}{inside_words(group)}", []).append(group)
        share = percent_words(links.network_share)
        head = f"transport: {transport}, which reaches {share} of the network's rate"
        if links.scale_up_bytes_per_s < float("inf") and links.scale_up_share != links.network_share:
            head += f" (NVLink between machines {percent_words(links.scale_up_share)})"
        if links.is_network_given:
            head = f"links between machines reach {share} of their rate (calibration.bandwidth_efficiency)"
        if len(by_words) == 1:
            text = head + next(iter(by_words))
        else:
            devices = Counter(name for alike in by_words.values() for name in {one.device.name for one in alike})
            text = head
            for words, alike in ((words, alike) for words, alike in by_words.items() if words):
                names = {one.device.name if devices[one.device.name] == 1 else one.name for one in alike}
                text += f"; on {joined(sorted(names))} {words.replace('; ', ', ').removeprefix(', ')}"
        if self.calibration.transport is None and not links.is_network_given:
            notes.assume_aloud(text, ("calibration", "transport"), other=_OTHER_TRANSPORT[transport])
        else:
            notes.assumptions.append(text)

    def _note_given(self, dnn: Dnn) -> None:
        """Warn of given shares above 1, refuse that of a kind of layer that is not there, and say known errors."""
        notes = self.reading.notes
        by_kind = self.calibration.utilisation_by_kind
        for kind in by_kind:
            if kind not in {layer.kind for layer in dnn.layers}:
                kinds = ", ".join(sorted({layer.kind for layer in dnn.layers if layer.num_multiply_adds}))
                path = ("calibration", "utilisation_by_kind", kind)
                notes.fault(path, f"{dnn.name} has no layer of this kind.", f"Known: {kinds}.")
        for name, share in {"bandwidth_efficiency": self.calibration.bandwidth_efficiency or 0, **by_kind}.items():
            if share > 1:
                notes.warnings.append(f"calibration: {name} {share:.4g} is above 1")
        for error in self.calibration.known_error:
            where = f", of {error.source}" if error.source else ""
            words = f"{error.mean:.1%} in the mean, {error.worst:.1%} at worst{where}"
            notes.assumptions.append(f"known error of {error.of}, as calibrated: {words}")

    def _note_program(self) -> None:
        """Say which program the figures of a transformer are those of; another than the default may lack layouts."""
        notes, program = self.reading.notes, self.calibration.program
        if "program" not in self.calibration.model_fields_set:
            notes.assume_aloud(f"program: {program} trains", ("calibration", "program"), other=_OTHER_PROGRAM)
            return
        more = "; layouts are those of Megatron-Core, and what it lacks is to be pinned or excluded"
        words = "" if program == _PROGRAM else more
        notes.assumptions.append(f"the program that trains: {program} (calibration.program){words}")

    def _note_gradients(self, *, is_hybrid_asked: bool) -> None:
        """Say in which type gradients are kept where that is told, and refuse one that the program does not have."""
        notes, program, asked = self.reading.notes, self.calibration.program, self.calibration.gradients
        path = ("calibration", "gradients")
        if asked is None:
            return
        if PROGRAMS[program].bf16_gradients is None:
            others = [name for name, one in PROGRAMS.items() if one.bf16_gradients is not None]
            mend = f"Leave it out, or write program: {' or '.join(others)}."
            notes.fault(path, f"{program} keeps gradients in a type of its own.", mend)
        elif asked == "bf16" and self.training.dtype != "bf16":
            what = f"gradients in bf16 go with numbers in bf16, and dnn.dtype is {self.training.dtype}."
            notes.fault(path, what, "Write dnn.dtype: bf16, or leave gradients out.")
        elif not is_hybrid_asked:
            notes.warnings.append(
                f"calibration.gradients alters nothing: no family that is asked counts with {program}"
            )
        else:
            notes.assumptions.append(f"gradients are kept and reduced in {asked} (calibration.gradients)")

    def _note_share_of_peak(self, dnn: Dnn, *, is_measured: bool) -> None:
        """Say what share of its peak each device is taken to reach, and warn where that is doubtful."""
        notes, used = self.reading.notes, self.calibration.utilisation
        if not is_measured and used is None:
            text = f"efficiency: the devices at {100 * UTILISATION:g} % of the peak"
            notes.assume_aloud(text, ("calibration", "utilisation"), other=UTILISATION / 2)
            notes.warnings.append("the devices are uncalibrated: give calibration.utilisation, or a measured profile")
        if dnn.transformer is not None:
            notes.warnings.append(
                "the family hybrid counts with rooflines fitted to transformers, the others with the seconds or the "
                "utilisation that were given: where these disagree, families are not compared alike"
            )
        if used is not None and used > 1:
            notes.warnings.append(
                f"a utilisation of {used:.4g} is above 1: right only for counts of multiply-adds, or algorithms "
                f"that save FLOP"
            )

    def _note_kernels(self, dnn: Dnn, devices: Sequence[str]) -> None:
        """Say how the network is run, and how far the rooflines of kernels were off where steps were measured."""
        notes, dtype = self.reading.notes, self.training.dtype
        is_compiled, is_short = self.execution == "compiled", dtype in _SHORT
        what = "chains of operators are one kernel" if is_compiled else "each operator is a kernel"
        if self.calibration.execution is None:
            notes.assume_aloud(
                f"execution: {self.execution}, {what}", ("calibration", "execution"), other=_OTHER_EXECUTION
            )
        else:
            notes.assumptions.append(f"execution: {self.execution}, {what}")
        if dnn.transformer is not None and is_short:
            notes.warnings.append(
                "the family hybrid counts with rooflines fitted to transformers, the others with rooflines of kernels: "
                "where these disagree, families are not compared alike"
            )
        if dtype == "tf32":
            notes.warnings.append("no kernels were measured in tf32: they are taken to reach what those in fp32 do")
        self._note_unknown(dnn)
        known = {group.device.name: group.device for group in self.cluster.machine_groups}
        for name in devices:
            if known[name].memory_bandwidth_bytes_per_s == float("inf"):
                peak = peak_flop_per_s(known[name], dtype)
                rate = f"{reached_bytes_per_s(known[name], peak, dtype) / 1e9:.4g} GB/s"
                notes.warnings.append(
                    f"the memory bandwidth of {name} is not known: taken to be {rate}, as much for its peak as an A100 "
                    f"has; give it with the device, as memory_bandwidth"
                )
        if is_short and is_compiled:
            for name in devices:
                self._note_fused(dnn, name, fused_steps(name))
        bands = {name: self._band(dnn, name) for name in devices}
        if self.calibration.pessimistic:
            bands = {name: band.from_its_slow_end for name, band in bands.items()}
        for band in dict.fromkeys(bands.values()):
            names = ", ".join(name for name in devices if bands[name] == band)
            words = f"80 % of measured ones {band.low:+.0%} to {band.high:+.0%} of them ({band.of}; {band.source})"
            if band.is_device_measured:
                notes.assumptions.append(f"seconds by rooflines of kernels, on {names}: {words}")
            else:
                notes.warnings.append(f"{names}: no training steps were measured there; {words}")

    def _note_unknown(self, dnn: Dnn) -> None:
        """Warn of layers whose kind says nothing of what they compute, with their share of the work."""
        unknown = {one.name for one in dnn.layers if not one.operators and not is_known(one.kind)}
        if not unknown:
            return
        kinds = ", ".join(sorted({repr(one.kind) for one in dnn.layers if one.name in unknown}))
        is_mine = np.array([one.name in unknown for one in dnn.layers])
        moved, flop = work_by_layer(dnn)
        shares = [float(work[is_mine].sum() / max(1.0, work.sum())) for work in (moved, flop)]
        self.reading.notes.warnings.append(
            f"{len(unknown)} layers of unknown kinds ({kinds}) count as element by element, or as a product where they "
            f"have multiply-adds: {shares[0]:.1%} of what is moved, {shares[1]:.1%} of the FLOP"
        )

    def _note_fused(self, dnn: Dnn, name: str, row: Mapping[str, Any]) -> None:
        """Say what the seconds of a compiled network in short numbers rest on, on one device."""
        notes, slowdown = self.reading.notes, row["slowdown"]
        how = f"steps on {name} are taken to be {slowdown:.4g} times as long as rooflines of its kernels say"
        if "num_runs" not in row:
            notes.assumptions.append(f"{how}, as those of measured devices are")
            return
        runs = f"{row['num_runs']} MLPerf run{'s' * (row['num_runs'] > 1)} of {_FITTED_TO} in 16-bit numbers"
        notes.assumptions.append(f"{how}, as {runs} were")
        least, batch = row["batch_per_device"][0], self.batch_per_device
        if batch < least:
            notes.warnings.append(f"{batch:g} samples on a device are fewer than were measured on {name} ({least:g})")
        if (self.reading.spec.dnn.zoo or dnn.name) != _FITTED_TO:
            notes.warnings.append(f"{name} was measured with {_FITTED_TO}: for {dnn.name} it is uncalibrated")


@lru_cache(maxsize=8)
def _kernel_profile(dnn: Dnn, limits: DeviceLimits, dtype: str, *, is_fused: bool, has_channels_last: bool) -> Profile:
    """Return the seconds by rooflines of kernels, which many questions in turn ask for."""
    execution = Execution.of(dtype, is_fused=is_fused, has_channels_last=has_channels_last)
    return network_profile(dnn, limits, Shares.of(kernel_shares(dtype)), execution)


def _is_named(measured_on: str, device: Device) -> bool:
    """Whether a profiler's name of a device, ``Tesla V100-SXM2-16GB``, may mean one of ours, ``v100-sxm2-16g``."""
    if measured_on == "a CPU":
        return device.kind == "cpu"
    parts = device.name.split("-")
    model = next((part for part in parts if any(map(str.isdigit, part))), device.name)
    return device.kind != "cpu" and fold(model) in fold(measured_on)
