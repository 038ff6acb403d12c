"""Samples a second of one network on several clusters, by number of devices and by how gradients are fused.

Methods: BSP-A2A sends all gradients at once, after the backward pass; WFBP-A2A every tensor alone, as it gets ready;
MG-WFBP merges tensors by the cost that it takes an all-reduce to have, which is an input here. The computation of an
iteration is that of the one-device row, spread over the layers by their FLOP. Evaluations: see :func:`measure`.
Source of the methods: S. Shi et al., arXiv:2005.13247.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from planner import channel, zoo
from planner.channel import Ends
from planner.cluster import Device
from planner.cost import Affine, Floats, Profile, TransferCost
from planner.data.fits import links_reached
from planner.models.communication import ALL_REDUCES, Participants, cheapest_of
from planner.models.compute import profile_from_flop
from planner.models.data_parallel import Gradients, gradients_of
from planner.problem import USUAL_ALGORITHMS
from planner.question.values import Count, Model, Name, Rate, Seconds, Share
from planner.solvers.fusion import mg_wfbp, one_group, unfused
from research.measured import Folds, Measured, MeasuredRow, Parameters, fit_logs, left_out_each, share_of

__all__ = ["Inputs", "Predictor", "Run", "measure", "usual"]

METHODS = ("BSP-A2A", "WFBP-A2A", "MG-WFBP")


class EstimateInput(Model):
    """What MG-WFBP takes an all-reduce to cost when it merges."""

    startup: Seconds
    s_per_byte: Annotated[float, Field(gt=0)]


class NetworkInput(Model):
    """A network as the table names it, and the estimates that MG-WFBP has for it, by number of devices."""

    bandwidth: Rate
    transport: Literal["tcp", "rdma"]
    estimates: dict[int, EstimateInput]


class OtherInput(Model):
    """Another network of layers on the same testbed: its table lies beside the case's own."""

    file: Name
    dnn: Name
    name: Name
    sequence_length: Count | None = None


class ElsewhereInput(Model):
    """Which shares of their rates links reach by other sources alone."""

    tcp_share: Share
    pcie_share: Share


class Inputs(Model):
    """The testbed, and which rows of the table are meant."""

    dnn: Name
    name: Name
    sequence_length: Count | None = None
    other: OtherInput
    inside: Rate
    latency: Seconds
    devices_per_machine: Count
    elsewhere: ElsewhereInput
    networks: Annotated[dict[str, NetworkInput], Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row of the table, as seconds an iteration."""

    network: str
    method: str
    num_devices: int
    batch_per_device: int
    measured_s: float
    transport: str


@dataclass(frozen=True)
class Predictor:
    """Predicts runs; ``computation_s`` is an iteration on one device.

    Parameters are seconds a hop of the network, and which share of its rate is reached inside a machine and by the
    network: one share for all networks, or one for each. An all-reduce runs over a flat ring; or, where
    ``is_cheapest``, by the cheapest of ring, tree and two levels, as the family ``all_reduce`` has it by default.
    """

    inputs: Inputs
    batch_per_device: int
    computation_s: float
    is_cheapest: bool = False

    def iteration_time_s(self, run: Run, parameters: Parameters) -> float:
        """Return computation and what communication the backward pass does not hide."""
        cost = self._all_reduce(run, parameters)
        sent = channel.schedule(self._ends(run), self._ready_s, self._gradients.size_bytes, cost)
        forward_s, backward_s = (
            float(one.sum()) * self.batch_per_device for one in (self._profile.forward_s, self._profile.backward_s)
        )
        return forward_s + backward_s + max(0.0, sent.finish_s - backward_s)

    def _all_reduce(self, run: Run, parameters: Parameters) -> TransferCost:
        """Return the cost of one all-reduce; the slowest link bounds a ring or a tree."""
        latency_s, inside_share, *shares = parameters
        share = share_of(run.network, self.inputs.networks, shares)
        inside, network = inside_share * self.inputs.inside, share * self.inputs.networks[run.network].bandwidth
        machines = -(-run.num_devices // self.inputs.devices_per_machine)
        participants = Participants(
            num_devices=[run.num_devices],
            num_machines=[machines],
            devices_per_machine=run.num_devices // machines,
            network_bytes_per_s=network if machines > 1 else inf,
            network_latency_s=latency_s if machines > 1 else 0.0,
            inside_bytes_per_s=inside,
        )
        names = USUAL_ALGORITHMS if self.is_cheapest else ("ring",)
        return cheapest_of([ALL_REDUCES[name](participants).at(0) for name in names])

    def _ends(self, run: Run) -> Ends:
        """Return which gradients travel together."""
        number = len(self._gradients.names)
        if run.method != "MG-WFBP":
            return one_group(number) if run.method == "BSP-A2A" else unfused(number)
        return self._merged[run.network, run.num_devices]

    @cached_property
    def _merged(self) -> dict[tuple[str, int], Ends]:
        """Return the groups of MG-WFBP, by network and number of devices."""
        sizes, found = self._gradients.size_bytes, {}
        for name, network in self.inputs.networks.items():
            for number, one in network.estimates.items():
                cost = Affine(startup_s=one.startup, per_byte_s=one.s_per_byte)
                found[name, number] = mg_wfbp(self._ready_s, sizes, cost, one.startup)
        return found

    @cached_property
    def _computed(self) -> tuple[Gradients, Profile]:
        """Return gradients and computation, on a device as fast as the measured one."""
        dnn = zoo.build(self.inputs.dnn, sequence_length=self.inputs.sequence_length)
        device = Device(name="as measured", peak_flop_per_s={"fp32": 1.0})
        one = profile_from_flop(dnn, device, dtype="fp32", utilisation=1.0)
        seconds = float(one.forward_s.sum() + one.backward_s.sum()) * self.batch_per_device
        profile = profile_from_flop(dnn, device, dtype="fp32", utilisation=seconds / self.computation_s)
        gradients = gradients_of(dnn, profile, gradient_bytes=4, unit="tensor")
        return gradients, profile

    @property
    def _gradients(self) -> Gradients:
        return self._computed[0]

    @property
    def _profile(self) -> Profile:
        return self._computed[1]

    @cached_property
    def _ready_s(self) -> Floats:
        return self._gradients.ready(self.batch_per_device)


def measure(inputs: Inputs, path: Path) -> Measured:
    """Return the rows of ten evaluations.

    no communication
        Computation alone: what a guess without any model of the network is off.
    nominal
        The cheapest algorithm at the rates by which links are sold, a latency that is assumed.
    defaults
        As the family reads a spec that says the transport and the rates: the same at the rates that links are taken to
        reach (:func:`planner.data.fits.links_reached`). They were fitted with these rows, among others.
    other sources
        As defaults, at rates that were fitted without this testbed.
    flat ring
        As nominal, over one flat ring, as in all that follow.
    latency of others
        Rates as sold, with the latency and the share inside that the other networks show, each at its own share.
    other networks
        One latency, one share of the rate inside and one of every network, fitted to the other networks.
    other methods
        One latency, one share inside and one for each network, fitted to the other methods.
    other sizes
        The same, fitted to other numbers of devices.
    another DNN
        The same, fitted to all rows of another network of layers on the same testbed.
    """
    one_device, runs = _read(inputs, path)
    predictor = Predictor(inputs, one_device.batch_per_device, one_device.measured_s)
    in_common, each = partial(_fit, predictor, num_shares=1), partial(_fit, predictor, num_shares=len(inputs.networks))
    folds: Folds[Run] = {
        "latency of others": (lambda run: run.network, lambda rows: (*each(rows)[:2], 1.0)),
        "other networks": (lambda run: run.network, in_common),
        "other methods": (lambda run: run.method, each),
        "other sizes": (lambda run: f"{run.num_devices} devices", each),
    }
    rows = [_row("no communication", run.network, run, one_device.measured_s) for run in runs]
    nominal, cheapest = (inputs.latency, 1.0, 1.0), replace(predictor, is_cheapest=True)
    rows += [_row("nominal", run.network, run, cheapest.iteration_time_s(run, nominal)) for run in runs]
    rows += [_row("defaults", run.network, run, cheapest.iteration_time_s(run, usual(inputs, run))) for run in runs]
    for run in runs:
        found = _without_testbed(inputs, run)
        rows.append(_row("other sources", run.network, run, cheapest.iteration_time_s(run, found)))
    rows += [_row("flat ring", run.network, run, predictor.iteration_time_s(run, nominal)) for run in runs]
    for name, group, run, found in left_out_each(runs, folds):
        rows.append(_row(name, group, run, predictor.iteration_time_s(run, found)))
    elsewhere = _fitted_elsewhere(inputs, path)
    rows += [_row("another DNN", run.network, run, predictor.iteration_time_s(run, elsewhere)) for run in runs]
    names = ("latency a hop, s", "share of the rate inside", *(f"share of {name}" for name in inputs.networks))
    return Measured(rows=tuple(rows), fitted=dict(zip(names, each(runs), strict=True)))


def usual(inputs: Inputs, run: Run) -> Parameters:
    """Return the parameters that a spec means which gives the transport, and no efficiencies."""
    network = inputs.networks[run.network]
    reached = links_reached(network.transport)
    most = min(reached.most_bytes_per_card, inputs.inside * reached.host_share)
    return (inputs.latency, reached.pcie_share, min(reached.network_share, most / network.bandwidth))


def _without_testbed(inputs: Inputs, run: Run) -> Parameters:
    """Return the same by other sources alone: none of them bounds TCP."""
    network, shares = inputs.networks[run.network], inputs.elsewhere
    reached = links_reached(network.transport)
    share = shares.tcp_share if network.transport == "tcp" else reached.network_share
    bound = shares.pcie_share * inputs.inside / network.bandwidth
    return (inputs.latency, shares.pcie_share, min(share, bound))


def _fitted_elsewhere(inputs: Inputs, path: Path) -> Parameters:
    """Return the parameters fitted to another network of layers."""
    other = inputs.other
    own = OtherInput(file=path.name, dnn=inputs.dnn, name=inputs.name, sequence_length=inputs.sequence_length)
    fields = {"dnn": other.dnn, "name": other.name, "sequence_length": other.sequence_length, "other": own}
    there = inputs.model_copy(update=fields)
    one_device, runs = _read(there, path.with_name(other.file))
    predictor = Predictor(there, one_device.batch_per_device, one_device.measured_s)
    return _fit(predictor, runs, num_shares=len(inputs.networks))


def _fit(predictor: Predictor, runs: Sequence[Run], *, num_shares: int) -> Parameters:
    """Return a latency, a share inside, and one share of all networks or one of each."""
    return fit_logs(
        runs,
        predictor.iteration_time_s,
        start=(2e-5, *[0.5] * (1 + num_shares)),
        most=(1e-2, *[1.0] * (1 + num_shares)),  # no link carries more than its rate
    )


def _row(evaluation: str, group: str, run: Run, predicted_s: float) -> MeasuredRow:
    """Return one prediction beside its measurement."""
    setting = f"{run.num_devices} devices, {run.network}"
    return MeasuredRow(
        evaluation=evaluation,
        quantity=f"{evaluation}: {run.method}, {setting}",
        group=group,
        unit="s",
        measured=run.measured_s,
        predicted=predicted_s,
        setting=setting,
        choice=run.method,
        transport=run.transport,
    )


def _read(inputs: Inputs, path: Path) -> tuple[Run, list[Run]]:
    """Return the run on one device, which all methods share, and the runs on several."""
    with path.open(encoding="utf-8") as lines:
        cells = [row for row in csv.DictReader(lines) if row["dnn"] == inputs.name and row["method"] in METHODS]
    runs = [
        Run(
            network=row["network"],
            method=row["method"],
            num_devices=int(row["gpus"]),
            batch_per_device=int(row["batch"]),
            measured_s=int(row["batch"]) * int(row["gpus"]) / float(row["samples_per_s"]),
            transport=inputs.networks[row["network"]].transport,
        )
        for row in cells
    ]
    alone = [run for run in runs if run.num_devices == 1]
    assert len({run.measured_s for run in alone}) == 1, "the rows of one device differ"
    return alone[0], [run for run in runs if run.num_devices > 1]
