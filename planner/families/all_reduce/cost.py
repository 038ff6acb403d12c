"""The cost of an all-reduce configuration: one way from a question and its decisions to seconds and bytes.

The devices of a plan are of one or more *kinds*. All devices of a kind are equal and have the same share of the batch,
some of them one sample less; homogeneous devices are one kind. Every device computes its share; a gradient is sent when
the last kind has it; all devices update when the last transfer has ended, and the slowest update ends the iteration::

    iteration = max(end of the last transfer + slowest update, computation + update of each kind) + compression

and no less than the input of any kind (:func:`planner.models.input.stall_s`). With gradient accumulation only the
backward pass of the last micro-batch hides communication. Compressing occupies the devices before that pass: no
gradient gets ready earlier relative to it, so nothing hides it. Sources: :mod:`planner.models.data_parallel` (overlap),
:mod:`planner.models.communication` (all-reduces), :mod:`planner.models.input`.
"""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from math import ceil
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from planner import channel
from planner.channel import FusionSchedule
from planner.cluster import Cluster, MachineGroup
from planner.constraints import memory_limit_bytes
from planner.cost import Floats, Passes, Profile, TransferCost
from planner.errors import Fault, SpecError
from planner.families.all_reduce.configuration import (
    AllReduceConfiguration,
    FusionGroup,
    GroupShare,
    is_heterogeneous,
    one_type,
)
from planner.frozen import frozen
from planner.links import LinkRates
from planner.models.activations import data_parallel_memory
from planner.models.communication import ALL_REDUCES, EVEN_ALL_REDUCES, Affines, Participants, cheapest_of, delayed
from planner.models.compression import Compression
from planner.models.data_parallel import Gradients, Kinds, buffer_recursion_time_s, csf, exposed_s, gradients_of
from planner.models.input import InputTime, Samples, Strategy, input_time, stall_s
from planner.models.memory import MemoryUse, Precision
from planner.plan import Prediction
from planner.problem import Problem
from planner.routes import routes_of
from planner.units import Dimension, format_human

Ints = NDArray[np.int64]

_IN_NETWORK = "in_network"  # allowed by a network whose switches all reduce; inside machines only where it is asked for

NOT_MODELLED = (
    "convergence and accuracy: a larger batch may need more epochs",
    "variation between iterations, failures and restarts",
    "workspaces and the framework's own memory, beyond calibration.memory_reserve",
    "contention with other jobs on the network",
    "what leaving out parts of gradients does to accuracy, and decompressing them",
)


@frozen
class InputRates:
    """Seconds of input of a group, for every sample of one device; reading a store that all share, of the batch."""

    read_s: float
    read_of_batch_s: float
    decode_s: float
    copy_s: float
    is_pipelined: bool

    def at(self, share: float, batch: float) -> InputTime:
        """Return the input of one iteration."""
        return InputTime(
            read_s=self.read_s * share + self.read_of_batch_s * batch,
            decode_s=self.decode_s * share,
            copy_s=self.copy_s * share,
            is_pipelined=self.is_pipelined,
        )

    def is_below(self, other: "InputRates") -> bool:
        """Whether no part of the input is slower than another one's."""
        names = ("read_s", "read_of_batch_s", "decode_s", "copy_s")
        return all(getattr(self, name) <= getattr(other, name) for name in names)

    def bounds_s(self, shares: Ints, batches: Ints) -> Floats:
        """Return the seconds between two batches (:attr:`InputTime.bound_s`) of many settings at once."""
        read_s = self.read_s * shares + self.read_of_batch_s * batches
        stages = np.stack([read_s, self.decode_s * shares, self.copy_s * shares])
        bounds: Floats = stages.max(axis=0) if self.is_pipelined else stages.sum(axis=0)
        return bounds


def slowest_input(rates: Sequence[InputRates], share: float, batch: float) -> InputTime:
    """Return the input of one iteration of the slowest of some groups of machines."""
    return max((one.at(share, batch) for one in rates), key=lambda time: time.bound_s)


@frozen
class DeviceKind:
    """Devices that do the same, and the groups of machines that they are in, in the order of a ring.

    ``name``: of the only group; empty where all devices of a plan are of one kind.
    """

    name: str
    groups: tuple[MachineGroup, ...]
    profile: Profile

    @property
    def num_machines(self) -> int:
        """Machines of all groups."""
        return sum(group.count for group in self.groups)

    def inside(self, links: LinkRates) -> tuple[float, float]:
        """Return bytes a second and seconds of latency of the slowest link inside a machine; free where none is."""
        latencies_s = [group.inside.latency_s for group in self.groups if group.inside is not None]
        return min(links.inside_bytes_per_s(group) for group in self.groups), max(latencies_s, default=0.0)


def cut_by(problem: Problem, unit: str) -> Problem:
    """Return a question whose fusion groups cut between layers (``layer``), or between tensors (``tensor``)."""
    if problem.calibration.fusion_unit == unit:
        return problem
    return replace(problem, calibration=replace(problem.calibration, fusion_unit=unit))


def cut_as(problem: Problem, names: Collection[str]) -> Problem:
    """Return a question whose fusion groups cut as these names of gradients do: between layers, or between tensors.

    Groups of a framework end at any tensor, whatever the question's own groups end at.
    """
    own = problem.calibration.fusion_unit
    known = {"layer": problem.dnn.trained_layers, "tensor": problem.dnn.trained_tensors}
    matches = {unit: len({name for name, _, _ in rows}.intersection(names)) for unit, rows in known.items()}
    return cut_by(problem, max(sorted(known, key=lambda unit: unit != own), key=lambda unit: matches[unit]))


class AllReduceCost:
    """What configurations of one question cost on given kinds of devices, so many of each machine of a kind.

    Made by :meth:`homogeneous`, :meth:`heterogeneous` or, for a configuration, :meth:`of`.
    """

    def __init__(
        self,
        problem: Problem,
        cluster: Cluster,
        kinds: Sequence[DeviceKind],
        devices_per_machine: Sequence[int],
        machines: tuple[str, ...] = (),
    ) -> None:
        self.problem, self.cluster, self.machines = problem, cluster, machines
        self.device_kinds = tuple(kinds)
        self.names = tuple(kind.name for kind in kinds)
        self.groups = tuple(group for kind in kinds for group in kind.groups)
        self.devices: Ints = np.array(devices_per_machine, dtype=np.int64)
        self.is_homogeneous = self.names == ("",)
        self.precision = Precision.of(problem.training.dtype, problem.training.optimizer)
        self.strategy = Strategy(problem.calibration.strategy)
        self._networks: dict[tuple[int, bool], tuple[float, float, float]] = {}
        self._transfers: dict[tuple[int, ...], dict[str, TransferCost]] = {}

    @classmethod
    def homogeneous(cls, problem: Problem, machines: Collection[str] = (), devices_per_machine: int = 1) -> Self:
        """Return the cost on devices of one type: of the groups of machines that are named, or of all.

        Raises
        ------
        SpecError
            If there are several types of device and none is pinned.
        """
        whole = one_type(problem, machines)
        cluster = whole.of_groups(machines) if machines else whole
        is_told = len(whole.machine_groups) > 1 or is_heterogeneous(problem)
        groups = routes_of(cluster).order
        kind = DeviceKind(name="", groups=groups, profile=problem.profiles[groups[0].device.name])
        return cls(problem, cluster, [kind], [devices_per_machine], tuple(machines) if is_told else ())

    @classmethod
    def heterogeneous(cls, problem: Problem, names: Sequence[str], devices_per_machine: Sequence[int]) -> Self:
        """Return the cost on the groups of machines that are named, each a kind of its own."""
        cluster, devices = problem.cluster.of_groups(names), dict(zip(names, devices_per_machine, strict=True))
        kinds = [
            DeviceKind(name=group.name, groups=(group,), profile=problem.profiles[group.device.name])
            for group in cluster.machine_groups
        ]
        return cls(problem, cluster, kinds, [devices[kind.name] for kind in kinds])

    @classmethod
    def of(cls, problem: Problem, configuration: AllReduceConfiguration) -> Self:
        """Return the cost on the devices of a configuration, its gradients cut as its fusion groups name them."""
        if configuration.fusion_groups:
            problem = cut_as(problem, [name for group in configuration.fusion_groups for name in group.tensors])
        if not configuration.groups:
            return cls.homogeneous(problem, configuration.machines, configuration.devices_per_machine)
        rows = configuration.groups
        return cls.heterogeneous(problem, [one.name for one in rows], [one.devices_per_machine for one in rows])

    def with_devices(self, devices_per_machine: Sequence[int]) -> Self:
        """Return the same kinds with other numbers of devices of each machine, in the order of ``names``."""
        _ = self.kinds, self.gradients, self.counts  # nothing that is cached depends on them: made once for all
        other = copy(self)
        other.devices = np.array(devices_per_machine, dtype=np.int64)
        return other

    @cached_property
    def counts(self) -> Ints:
        """Machines that there are of each kind."""
        return np.array([kind.num_machines for kind in self.device_kinds], dtype=np.int64)

    @cached_property
    def memory(self) -> MemoryUse:
        """What a device holds."""
        reserve = self.problem.calibration.memory_reserve_bytes
        return data_parallel_memory(self.problem.dnn, self.precision, reserve_bytes=reserve)

    @cached_property
    def memory_limits_bytes(self) -> tuple[float, ...]:
        """What a device of each kind may hold: its memory, or the user's limit where that is less."""
        return tuple(memory_limit_bytes(self.problem, kind.groups[0]) for kind in self.device_kinds)

    @cached_property
    def most_at_a_time(self) -> Ints:
        """Samples that a device of each kind holds; 0 where not even one fits."""
        return np.array([self.memory.most_samples(limit) for limit in self.memory_limits_bytes], dtype=np.int64)

    @cached_property
    def insides(self) -> tuple[tuple[float, float], ...]:
        """Bytes a second and latency of the slowest link inside machines of each kind, at the rate that is reached."""
        return tuple(kind.inside(self.problem.calibration.links) for kind in self.device_kinds)

    def _gradients_on(self, kind: DeviceKind) -> Gradients:
        """Return what has to be sent, and when it is ready on devices of a kind."""
        size, unit = self.precision.gradient_bytes, self.problem.calibration.fusion_unit
        return gradients_of(self.problem.dnn, kind.profile, gradient_bytes=size, unit=unit)

    @cached_property
    def gradients(self) -> Gradients:
        """What has to be sent; its ready times are those of the first kind."""
        return self._gradients_on(self.device_kinds[0])

    @cached_property
    def kinds(self) -> Kinds:
        """The computation of each kind, in the fewest micro-batches that fit or as many as are pinned."""
        profiles = [kind.profile for kind in self.device_kinds]
        forward, backward = (Passes.stack(one) for one in zip(*(one.whole for one in profiles), strict=True))
        ready = Passes.stack([self._gradients_on(kind).ready for kind in self.device_kinds])
        if not self.strategy.overlaps_gradients:
            shape = ready.base_s.shape
            ready = backward.map(lambda seconds: np.broadcast_to(seconds[:, :, None], shape))
        steps = self.problem.fixed.get("gradient_accumulation_steps")
        return Kinds(
            forward=forward,
            backward=backward,
            ready=ready,
            update_s=np.array([profile.update_s for profile in profiles]),
            most_at_a_time=np.maximum(self.most_at_a_time, 1),
            num_microbatches=None if steps is None else np.full(len(profiles), steps, dtype=np.int64),
        )

    def _network(self, num_machines: int, *, is_bound: bool) -> tuple[float, float, float]:
        """Return bandwidth and latency of a ring over so many machines, and the bandwidth of trees.

        Homogeneous ones are taken in the order of the ring; of heterogeneous ones all that there are.
        ``is_bound``: what no ring and no trees over so many or more exceed.
        """
        if num_machines == 1 or self.cluster.num_machines == 1:
            return float("inf"), 0.0, float("inf")
        number = num_machines if self.is_homogeneous else self.cluster.num_machines
        if (number, is_bound) not in self._networks:
            routes, reached = routes_of(self.cluster), self.problem.calibration.links.network_bytes_per_s
            ring = routes.widest_ring(number) if is_bound else routes.ring(number)
            trees = routes.own_bytes_per_s(number) if is_bound else routes.tree_bytes_per_s(number)
            before = accumulate((group.count for group in self.groups), initial=0)
            first = [group for group, stand in zip(self.groups, before, strict=False) if stand < number]
            found = reached(ring.bandwidth_bytes_per_s, *first), ring.latency_s, reached(trees, *first)
            self._networks[number, is_bound] = found
        return self._networks[number, is_bound]

    def forms_of(
        self,
        num_machines: Ints,
        num_devices: Ints,
        *,
        most_devices: int,
        inside_bytes_per_s: Floats,
        inside_latency_s: Floats,
        is_even: bool,
        is_bound: bool = False,
    ) -> dict[str, Affines]:
        """Return the costs of the allowed algorithms, negotiation included; none where none suits the machines.

        Parameters
        ----------
        num_machines, num_devices
            Of many settings at once.
        most_devices
            Of any machine: they are chained inside it.
        inside_bytes_per_s, inside_latency_s
            Of the links inside machines, at the rate that is reached, as numbers or for each setting.
        is_even
            Whether all machines have equally many devices, which two levels need.
        is_bound
            No setting of so many machines or more costs less.
        """
        fitted = self.problem.calibration
        distinct, places = np.unique(num_machines, return_inverse=True)
        network_bytes_per_s, network_latency_s, tree_bytes_per_s = np.array(
            [self._network(one, is_bound=is_bound) for one in distinct.tolist()]
        ).T[:, places]
        participants = Participants(
            num_devices=num_devices,
            num_machines=num_machines,
            devices_per_machine=most_devices,
            network_bytes_per_s=network_bytes_per_s,
            network_latency_s=network_latency_s,
            tree_bytes_per_s=tree_bytes_per_s,
            inside_bytes_per_s=inside_bytes_per_s,
            inside_latency_s=inside_latency_s,
            overhead_s=fitted.overhead_s + fitted.negotiate_s,
            reduce_bytes_per_s=self._reduce_bytes_per_s,
            inside_reduces=not self.cluster.reduces or _IN_NETWORK in fitted.algorithms,
        )
        return {name: ALL_REDUCES[name](participants) for name in self.algorithms(is_even=is_even)}

    def algorithms(self, *, is_even: bool) -> list[str]:
        """Return the algorithms that are allowed; two levels need equally many devices in every machine."""
        pinned = self.problem.fixed.get("algorithm")
        allowed = [pinned] if pinned else list(self.problem.calibration.algorithms)
        if not pinned and self.cluster.reduces and _IN_NETWORK not in allowed:
            allowed.append(_IN_NETWORK)
        return [name for name in allowed if name in ALL_REDUCES and (is_even or name not in EVEN_ALL_REDUCES)]

    @cached_property
    def _reduce_bytes_per_s(self) -> float:
        """Bytes of gradient that the slowest device adds up in a second."""
        fitted, width = self.problem.calibration, self.precision.gradient_bytes
        return min(fitted.reduce_bytes_per_s(kind.groups[0].device, width) for kind in self.device_kinds)

    def least_transfers_s(self, num_machines: Ints, sizes_bytes: Floats) -> Floats:
        """Return what an all-reduce takes at least over so many machines, some of them these: (numbers, sizes).

        No ring and no tree is wider than the own links of any of its machines, or has shorter hops than these; and none
        takes less for more devices of each, or for their links inside.
        """
        group, fitted = self.groups[0], self.problem.calibration
        own = self.cluster.own_link(group.name)
        places = Participants(
            num_devices=num_machines,
            num_machines=num_machines,
            devices_per_machine=1,
            network_bytes_per_s=fitted.links.network_bytes_per_s(own.bandwidth_bytes_per_s, group),
            network_latency_s=own.latency_s,
            overhead_s=fitted.overhead_s + fitted.negotiate_s,
            reduce_bytes_per_s=self._reduce_bytes_per_s,
        )
        forms = [ALL_REDUCES[name](places) for name in self.algorithms(is_even=True)]
        each = [one.startup_s[:, None] + one.per_byte_s[:, None] * sizes_bytes for one in forms]
        return np.where(sizes_bytes > 0, np.min(each, axis=0), 0.0)

    def transfer_costs(self, num_machines: int, num_devices: int) -> dict[str, TransferCost]:
        """Return the cost of an all-reduce by algorithm; a curve of this many devices goes before."""
        fitted, key = self.problem.calibration, (num_machines, num_devices, *self.devices.tolist())
        if curve := fitted.all_reduce_curves.get(num_devices):
            return {"measured": delayed(curve, fitted.negotiate_s)}
        if key in self._transfers:
            return self._transfers[key]
        inside = [one for one, each in zip(self.insides, self.devices.tolist(), strict=True) if each > 1]
        forms = self.forms_of(
            np.array([num_machines]),
            np.array([num_devices]),
            most_devices=int(self.devices.max()),
            inside_bytes_per_s=np.array(min((bandwidth for bandwidth, _ in inside), default=float("inf"))),
            inside_latency_s=np.array(max((latency_s for _, latency_s in inside), default=0.0)),
            is_even=len(set(self.devices.tolist())) == 1,
        )
        self._transfers[key] = {name: costs.at(0) for name, costs in forms.items()}
        return self._transfers[key]

    def transfer_costs_of(self, configuration: AllReduceConfiguration) -> dict[str, TransferCost]:
        """Return the cost of an all-reduce of a configuration by algorithm."""
        return self.transfer_costs(configuration.num_machines, configuration.num_devices)

    def input_rates(self, num_machines: int) -> tuple[tuple[InputRates, ...], ...]:
        """Return the input of the groups of each kind while so many machines read.

        Of a store that all share, each group waits for the whole batch; of one that some share, for as many machines
        like its own.
        """
        devices = self.devices.tolist()
        return tuple(self.rates_of(index, each, num_machines) for index, each in enumerate(devices))

    def rates_of(self, kind: int, devices: int, num_machines: int) -> tuple[InputRates, ...]:
        """Return the input of the groups of one kind, with so many devices of each machine."""
        training, found = self.problem.training, []
        for group in self.device_kinds[kind].groups:
            one, of_batch = (
                input_time(
                    group,
                    Samples.of(self.problem),
                    num_machines=num_machines,
                    devices_per_machine=devices,
                    batch_per_device=share,
                    whole_batch=batch,
                    read_s_per_sample=training.measured_read_s(self.device_kinds[kind].profile, group),
                )
                for share, batch in ((1.0, 0.0), (0.0, 1.0))
            )
            rates = InputRates(
                read_s=one.read_s,
                read_of_batch_s=of_batch.read_s,
                decode_s=one.decode_s,
                copy_s=one.copy_s,
                is_pipelined=one.is_pipelined,
            )
            found.append(rates)
        return tuple(found)

    def inputs(self, configuration: AllReduceConfiguration) -> list[InputTime]:
        """Return the input of one iteration, kind by kind."""
        rows = self.rows_of(configuration)
        total = min(sum(row.num_devices * row.batch_per_device for row in rows), configuration.global_batch_size)
        rates = self.input_rates(configuration.num_machines)
        return [slowest_input(one, row.batch_per_device, total) for one, row in zip(rates, rows, strict=True)]

    def configuration(
        self,
        machines: Sequence[int],
        shares: Sequence[int],
        global_batch_size: int,
        *,
        steps: Sequence[int] | None = None,
        ends: Sequence[int] = (),
        compression: Compression | None = None,
    ) -> AllReduceConfiguration:
        """Return the configuration of the kinds' machines and shares, each fused group by its cheapest algorithm.

        Parameters
        ----------
        steps
            Micro-batches of each kind; None: the fewest that fit, or as many as are pinned.
        ends
            The last gradient of each fused group.
        """
        if steps is None:
            steps = self.kinds.microbatches(np.array([shares], dtype=np.int64))[0].tolist()
        rows = tuple(
            GroupShare(
                name=name,
                num_machines=number,
                devices_per_machine=devices,
                batch_per_device=share,
                gradient_accumulation_steps=step,
            )
            for name, number, devices, share, step in zip(
                self.names, machines, self.devices.tolist(), shares, steps, strict=True
            )
        )
        bare = AllReduceConfiguration(
            num_devices=sum(row.num_devices for row in rows),
            num_machines=sum(machines),
            devices_per_machine=int(self.devices.max()),
            global_batch_size=global_batch_size,
            gradient_accumulation_steps=max(steps),
            fusion_groups=(),
            machines=self.machines,
            groups=() if self.is_homogeneous else rows,
            compression=compression,
        )
        return self.fused(bare, ends)

    def fused(self, configuration: AllReduceConfiguration, ends: Sequence[int]) -> AllReduceConfiguration:
        """Return a configuration with the groups that end at ``ends``, each by its cheapest algorithm."""
        groups: tuple[FusionGroup, ...] = ()
        if ends and self.gradients.names:
            costs = self.transfer_costs_of(configuration)
            names, starts = list(costs), [0, *(end + 1 for end in ends[:-1])]
            sizes = np.add.reduceat(self.gradients.size_bytes, starts)
            cheapest = np.argmin([costs[name](sizes * configuration.kept) for name in names], axis=0).tolist()
            groups = tuple(
                FusionGroup(tensors=self.gradients.names[start : end + 1], algorithm=names[chosen], size_bytes=size)
                for start, end, chosen, size in zip(starts, ends, cheapest, sizes.tolist(), strict=True)
            )
        return replace(configuration, fusion_groups=groups)

    def rows_of(self, configuration: AllReduceConfiguration) -> list[GroupShare]:
        """Return what the devices of each kind do, in the order of this cost's kinds."""
        rows = {row.name: row for row in configuration.shares}
        return [rows[name] for name in self.names]

    def kinds_of(self, configuration: AllReduceConfiguration) -> tuple[Kinds, Ints]:
        """Return the computation with the micro-batches of a configuration, and the shares as one row."""
        rows = self.rows_of(configuration)
        steps = np.array([row.gradient_accumulation_steps for row in rows], dtype=np.int64)
        shares = np.array([[row.batch_per_device for row in rows]], dtype=np.int64)
        return replace(self.kinds, num_microbatches=steps), shares

    def straggler(self, configuration: AllReduceConfiguration) -> tuple[int, float, float]:
        """Return the kind that computes longest, when its last backward pass starts, and how long that takes."""
        kinds, shares = self.kinds_of(configuration)
        computed_s = kinds.computed_s(shares)[0]
        slowest = int(np.argmax(computed_s))
        last_s = float(kinds.backward.of_each(kinds.last_samples(shares))[0, slowest])
        return slowest, float(computed_s[slowest]) - last_s, last_s

    def ready_s(self, configuration: AllReduceConfiguration) -> Floats:
        """Return when every gradient may be sent, from the start of the straggler's last backward pass."""
        kinds, shares = self.kinds_of(configuration)
        ready_s: Floats = kinds.ready_s(shares)[0] - self.straggler(configuration)[1]
        return ready_s

    def schedule(self, configuration: AllReduceConfiguration) -> FusionSchedule | None:
        """Return when every fused group is sent, from the start of the straggler's last backward pass.

        None where there is nothing to send.

        Raises
        ------
        SpecError
            If the algorithm of a group has no cost here.
        """
        if not configuration.fusion_groups or configuration.num_devices == 1:
            return None
        costs, kept = self.transfer_costs_of(configuration), configuration.kept
        for group in configuration.fusion_groups:
            if group.algorithm not in costs:
                fault = Fault(
                    field="configuration.all_reduce.fusion_groups",
                    value=group.algorithm,
                    problem=f"{group.algorithm!r} has no cost for {configuration.num_devices} devices.",
                    mend=f"Use {', '.join(costs)}.",
                )
                raise SpecError.of([fault])
        seconds = [
            float(costs[group.algorithm](np.array([group.size_bytes * kept]))[0])
            for group in configuration.fusion_groups
        ]
        ends = np.cumsum([len(group.tensors) for group in configuration.fusion_groups]) - 1
        fitted = self.problem.calibration
        return channel.schedule(
            tuple(ends.tolist()),
            self.ready_s(configuration),
            self.gradients.size_bytes * kept,
            lambda _: np.array(seconds),
            wait=fitted.wait,
            timeout_s=fitted.timeout_s,
        )

    def predict(self, configuration: AllReduceConfiguration) -> Prediction:
        """Return what a configuration costs, by the equations at the head of the module.

        The breakdown is that of the straggler, the kind that computes longest: what other devices wait for it is no
        term of its own.
        """
        problem, (kinds, shares) = self.problem, self.kinds_of(configuration)
        slowest, begin_s, last_backward_s = self.straggler(configuration)
        computed_s = kinds.computed_s(shares)[0]
        schedule, negotiate_s = self.schedule(configuration), problem.calibration.negotiate_s
        exposed: Mapping[str, float] = dict.fromkeys(("all_reduce", "wait", "negotiate", "misc"), 0.0)
        finish_s = None if schedule is None else schedule.finish_s
        if problem.variant == "printed" and self.is_homogeneous:
            finish_s = self._printed_finish_s(configuration)
            exposed = {**exposed, "all_reduce": max(0.0, finish_s - last_backward_s)}
        elif schedule is not None:
            exposed = exposed_s(schedule, backward_end_s=last_backward_s, negotiate_s=negotiate_s)
        end_s = float((computed_s + kinds.update_s).max())
        if finish_s is not None:
            end_s = max(end_s, begin_s + finish_s + float(kinds.update_s.max()))
        busy_s = configuration.compression_s + end_s
        inputs = self.inputs(configuration)
        iteration_s = busy_s + max(stall_s(read, busy_s, self.strategy) for read in inputs)
        computation_s = float(computed_s[slowest])
        breakdown = {
            "forward": float(kinds.over(kinds.forward, shares)[0, slowest]),
            "backward": float(kinds.over(kinds.backward, shares)[0, slowest]),
        }
        breakdown |= {} if configuration.compression is None else {"compression": configuration.compression_s}
        breakdown |= {f"exposed_{name}": seconds for name, seconds in exposed.items()}
        update_s = max(0.0, end_s - computation_s - sum(exposed.values()))
        breakdown |= {"update": update_s, "input_stall": iteration_s - busy_s}
        training = problem.training
        samples, epochs = training.dataset_samples, training.epochs
        epoch_s = None if samples is None else iteration_s * samples / configuration.global_batch_size
        transfer = cheapest_of(list(self.transfer_costs_of(configuration).values()))
        one_transfer_s = float(transfer(np.array([self.gradients.total_bytes * configuration.kept]))[0])
        communication = dict.fromkeys(exposed, 0.0)
        if schedule is not None:  # hidden or not, from the first gradient to the last transfer's end
            first_s = float(schedule.ready_s[0])
            communication = dict(exposed_s(schedule, backward_end_s=first_s, negotiate_s=negotiate_s))
        memory = self.memory_bytes(configuration)
        longest = max(inputs, key=lambda one: one.bound_s)
        columns = (
            {}
            if schedule is None
            else {
                "size_bytes": schedule.size_bytes,
                "ready_s": schedule.ready_s,
                "start_s": schedule.start_s,
                "end_s": schedule.end_s,
            }
        )
        rows = list(zip(*(column.tolist() for column in columns.values()), strict=True))
        details: dict[str, Any] = {
            "batch_per_device": max(row.batch_per_device for row in configuration.shares),
            "num_all_reduces": len(rows),
            "gradient_bytes": self.gradients.total_bytes,
            "scaling_factor_without_overlap": csf(computation_s=computation_s, communication_s=one_transfer_s),
            "last_backward_s": last_backward_s,
            "input_s": _input_row(longest),
        }
        if not self.is_homogeneous:
            details["straggler"] = self.names[slowest]
            details["groups"] = {
                row.name: {
                    "num_devices": row.num_devices,
                    "batch_per_device": row.batch_per_device,
                    "gradient_accumulation_steps": row.gradient_accumulation_steps,
                    "computation_s": seconds,
                    "memory_bytes": held["total"],
                    "input_s": _input_row(read),
                }
                for row, seconds, held, read in zip(
                    self.rows_of(configuration), computed_s.tolist(), memory, inputs, strict=True
                )
            }
        details["schedule"] = [dict(zip(columns, row, strict=True)) for row in rows]
        return Prediction(
            iteration_time_s=iteration_s,
            epoch_time_s=epoch_s,
            training_time_s=None if epoch_s is None or epochs is None else epoch_s * epochs,
            breakdown_s=breakdown,
            communication_s=communication,
            scaling_factor=self._alone_s(configuration) / iteration_s,
            communication_to_computation=one_transfer_s / computation_s if computation_s else float("inf"),
            memory_bytes=max(memory, key=lambda one: (one["total"] / one["limit"], one["total"])),
            details=details,
        )

    def _printed_finish_s(self, configuration: AllReduceConfiguration) -> float:
        """Return when the last transfer ends by eq. 13 as printed, which loses gradients or sends them twice."""
        rule = self.problem.configuration[1]["fusion_groups"] if self.problem.configuration else None
        if not isinstance(rule, Mapping) or rule.get("buffer") is None:
            mend = "Write fusion_groups: {buffer: 100 MB}, or leave out variant."
            text = "the printed equation 13 is about a buffer of constant size."
            raise SpecError.of([Fault(field="variant", value="printed", problem=text, mend=mend)])
        ready_s = self.ready_s(configuration)
        gaps_s = np.diff(ready_s)[::-1].tolist()
        update_s = buffer_recursion_time_s(
            self.gradients.size_bytes[::-1].tolist(),
            [*gaps_s, 0.0],  # t_b of the layer nearest the loss counts for nothing: time starts at its end
            cheapest_of(list(self.transfer_costs_of(configuration).values())),
            buffer_bytes=rule["buffer"],
            timeout_s=self.problem.calibration.timeout_s,
            is_printed=True,
        )
        return float(ready_s[0]) + update_s

    def _alone_s(self, configuration: AllReduceConfiguration) -> float:
        """Return the iteration if every device worked at the rate that it has alone, without waiting for another."""
        kinds, shares = self.kinds_of(configuration)
        samples, rate = 0, 0.0
        for index, busy_s in enumerate((kinds.computed_s(shares)[0] + kinds.update_s).tolist()):
            row = self.rows_of(configuration)[index]
            share = row.batch_per_device
            read = slowest_input(self.rates_of(index, 1, 1), share, share)
            samples += row.num_devices * share
            rate += row.num_devices * share / (busy_s + stall_s(read, busy_s, self.strategy))
        return samples / rate

    def memory_bytes(self, configuration: AllReduceConfiguration) -> list[dict[str, float]]:
        """Return the bytes on a device of each kind, term by term and in total, with what it may hold."""
        return [
            self.memory.terms_bytes(ceil(row.batch_per_device / row.gradient_accumulation_steps), limit_bytes=limit)
            for limit, row in zip(self.memory_limits_bytes, self.rows_of(configuration), strict=True)
        ]


def _input_row(time: InputTime) -> dict[str, float]:
    """Return the parts of an input."""
    return {"read": time.read_s, "decode": time.decode_s, "copy": time.copy_s}


def explain(cost: AllReduceCost, configuration: AllReduceConfiguration, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds, who waits for whom, and whether it fits."""
    lines = [binding(cost, configuration, prediction), *waiting(cost, prediction)]
    for name, memory in zip(cost.names, cost.memory_bytes(configuration), strict=True):
        if memory["total"] > memory["limit"]:
            total, limit = (format_human(memory[key], Dimension.DATA) for key in ("total", "limit"))
            where = f" of {name}" if name else ""
            lines.append(f"it does not fit: a device{where} would hold {total}, and may hold {limit}")
    return tuple(lines)


def binding(cost: AllReduceCost, configuration: AllReduceConfiguration, prediction: Prediction) -> str:
    """Return what an iteration's time is spent on most: compute, exposed communication, small messages, or input."""
    breakdown, total_s = prediction.breakdown_s, prediction.iteration_time_s
    compute_s = sum(breakdown.get(name, 0.0) for name in ("forward", "backward", "update", "compression"))
    exposed_s = sum(seconds for name, seconds in breakdown.items() if name.startswith("exposed_"))
    if breakdown["input_stall"] > 0:
        inputs = dict(zip(cost.names, cost.inputs(configuration), strict=True))
        name = max(inputs, key=lambda one: inputs[one].bound_s)
        stages = _input_row(inputs[name])
        slowest = max(stages, key=stages.__getitem__)
        took, wait = (format_human(seconds, Dimension.TIME) for seconds in (stages[slowest], breakdown["input_stall"]))
        return f"input binds: {slowest}{f' of {name}' if name else ''} takes {took}, the devices wait {wait}"
    shares = f"{compute_s / total_s:.0%} computation, {exposed_s / total_s:.0%} exposed communication"
    if exposed_s <= compute_s:
        return f"computation binds: {shares}"
    costs = cost.transfer_costs_of(configuration)
    startup_s = sum(float(costs[group.algorithm](np.array([1.0]))[0]) for group in configuration.fusion_groups)
    if startup_s > prediction.communication_s["all_reduce"] / 2:
        return f"the latency of small messages binds: {shares}; {startup_s:.3g} s of start-ups"
    return f"exposed communication binds, by its bandwidth: {shares}"


def waiting(cost: AllReduceCost, prediction: Prediction) -> tuple[str, ...]:
    """Return which kind computes longest, and how much of that the others are idle for."""
    if len(cost.names) == 1:
        return ()
    groups, slowest = prediction.details["groups"], prediction.details["straggler"]
    longest_s = groups[slowest]["computation_s"]
    if not longest_s:
        return ()
    rows = [
        f"{name} {row['batch_per_device']} samples in {format_human(row['computation_s'], Dimension.TIME)}"
        for name, row in groups.items()
    ]
    idle = [
        f"{name} {1 - row['computation_s'] / longest_s:.0%}"
        for name, row in groups.items()
        if name != slowest and row["computation_s"] < longest_s * (1 - 5e-3)
    ]
    waits = f"; {slowest} computes longest, idle meanwhile: {', '.join(idle)}" if idle else "; they end together"
    return (f"each device computes: {', '.join(rows)}{waits}",)
