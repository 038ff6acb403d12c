"""The stages of a pipeline: how a layer graph is cut, where stages stand, and what they cost in seconds and bytes.

**A line.** Layers stand in the order of ``Dnn.layers``: topological, ties by insertion, so every edge leads forward. A
stage is the run ``first`` to ``last`` of it, both included; every edge then stays in its stage or leads to a later one.
What crosses a cut are the outputs of the *distinct producers* before it that some layer behind it still reads: a tensor
that two later layers read crosses once, and one that skips over whole stages is relayed by each of them. Other orders
of the same graph may cross less; choosing among them is left out.

**Places.** A stage stands on ``replicas`` equal devices of one machine group; the stages of a group take its devices in
their order, filling machine after machine.

**Seconds.** A micro-batch of b samples is split over the r replicas: each computes ``ceil(b / r)`` samples. A
replicated stage exchanges its gradients in one all-reduce, by the cheapest closed form that its placement allows; its
update takes the share of the whole network's that its trainable parameters have. A boundary between two stages on the
same one machine uses the link inside: ``latency + bytes / (min(r, r') B)``, each device with a link of its own. Any
other uses the network: ``latency + bytes / min(k B, k' B')``, with the k machines that a stage stands on and their
network cards together; that other stages on these machines may send at the same time is left out. Errors come back as
large as the outputs went; images or words that are relayed are charged likewise.

**Bytes** of a stage: weights, gradients and optimiser's state of its layers; for each micro-batch in flight the outputs
of its layers and the input that it received; one outgoing and one incoming error; the reserve. No recomputation.

All is answered from prefix sums, for arrays of ``first`` and ``last`` as well as for numbers. Source of
the collectives: :mod:`planner.models.communication`; the rest is bookkeeping of our own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost import Floats, Passes, Profile, TransferCost
from planner.dnn import Dnn
from planner.frozen import frozen
from planner.models.activations import kept_bytes
from planner.models.communication import ALL_REDUCES, EVEN_ALL_REDUCES, Participants, cheapest_of, delayed
from planner.models.memory import STATISTIC_BYTES, Precision
from planner.problem import USUAL_ALGORITHMS

Positions = int | NDArray[np.int64]
Numbers = float | NDArray[np.int64] | Floats


@frozen(eq=False)
class Linearisation:
    """The order of the layers and, for each, how long its output is needed."""

    names: tuple[str, ...]  # of the L layers, in order
    # by layer, the position of the last layer that reads its output; its own position where none does
    last_reader: NDArray[np.int64]
    output_elements: NDArray[np.int64]  # by layer, of one sample
    # L - 1 numbers: elements of one sample that cross the cut behind each layer but the last
    cut_elements: NDArray[np.int64]

    def relayed_by(self, first: int, last: int) -> tuple[int, ...]:
        """Return the earlier layers whose outputs a stage must pass on to later ones.

        Parameters
        ----------
        first, last
            Of the stage's layers, by position; an empty stage in front of ``first = last + 1`` passes on all that
            crosses the cut there.
        """
        return tuple(np.flatnonzero(self.last_reader[:first] > last).tolist())


def linearise(dnn: Dnn) -> Linearisation:
    """Return the network as a line.

    Parameters
    ----------
    dnn
        Of L layers.

    Notes
    -----
    The output of layer u crosses the cuts ``u .. last_reader(u) - 1``: one difference array, summed up, gives all cuts
    in ``O(V + E)``.
    """
    position = {layer.name: index for index, layer in enumerate(dnn.layers)}
    last_reader = np.arange(len(dnn.layers))
    for target, layer in enumerate(dnn.layers):  # in topological order: the last one that reads is the last reader
        last_reader[[position[source] for source in dnn.inputs_of(layer.name)]] = target
    elements = np.array([layer.num_output_elements for layer in dnn.layers], dtype=np.int64)
    change = np.zeros(len(elements) + 1, dtype=np.int64)
    np.add.at(change, np.arange(len(elements)), elements)
    np.add.at(change, last_reader, -elements)
    return Linearisation(
        names=tuple(position),
        last_reader=last_reader,
        output_elements=elements,
        cut_elements=np.cumsum(change)[: len(elements) - 1],
    )


@frozen
class Stage:
    """The layers ``first`` to ``last`` on ``replicas`` devices of the machine group with index ``group``."""

    first: int
    last: int
    group: int = 0
    replicas: int = 1


@frozen
class Place:
    """The devices of a stage: so many of a group, from device ``start`` on, in machines of ``devices_per_machine``."""

    group: int
    start: int
    replicas: int
    devices_per_machine: int

    @property
    def first_machine(self) -> int:
        """Index of its first machine in the group."""
        return self.start // self.devices_per_machine

    @property
    def num_machines(self) -> int:
        """Machines that it stands on, wholly or in part."""
        return (self.start + self.replicas - 1) // self.devices_per_machine - self.first_machine + 1

    @property
    def most_per_machine(self) -> int:
        """Devices on the machine that has most of them."""
        first = self.devices_per_machine - self.start % self.devices_per_machine
        if self.num_machines == 1:
            return self.replicas
        if self.num_machines > 2:
            return self.devices_per_machine
        return max(first, self.replicas - first)

    @property
    def is_even(self) -> bool:
        """Whether all its machines hold equally many of its devices."""
        return self.num_machines * self.most_per_machine == self.replicas


class PlaceError(ValueError):
    """A group has fewer devices than its stages take; ``group`` is its index, ``needed`` what they take."""

    def __init__(self, group: int, needed: int) -> None:
        super().__init__(group, needed)
        self.group, self.needed = group, needed


def places_of(stages: Iterable[Stage], machines: Sequence["StageMachines"]) -> tuple[Place, ...]:
    """Return where stages stand that take the devices of their groups in order.

    Parameters
    ----------
    stages
        In the order of the layers.
    machines
        The groups, by index.

    Raises
    ------
    PlaceError
        If a group has too few devices.

    Examples
    --------
    Three stages on machines of four devices stand on one, two and one machine:

    >>> group = StageMachines(name="a", num_machines=2, devices_per_machine=4, profile=None)
    >>> stages = [Stage(first=0, last=0, replicas=number) for number in (3, 2, 3)]
    >>> [place.num_machines for place in places_of(stages, [group])]
    [1, 2, 1]
    """
    taken = [0] * len(machines)
    places = []
    for one in stages:
        each = machines[one.group].devices_per_machine
        places.append(Place(group=one.group, start=taken[one.group], replicas=one.replicas, devices_per_machine=each))
        taken[one.group] += one.replicas
    for place in places:
        if taken[place.group] > machines[place.group].num_devices:
            raise PlaceError(place.group, taken[place.group])
    return tuple(places)


@frozen(eq=False)
class StageMachines:
    """A machine group as stages see it; rates are those that are reached, efficiency included."""

    name: str
    num_machines: int
    devices_per_machine: int
    profile: Profile  # seconds of every layer on its device, and ``update_s`` of the whole network
    memory_limit_bytes: float = float("inf")  # what a device may hold
    # network_bytes_per_s, network_latency_s: of all network cards of a machine, one direction; between two of its
    # machines
    network_bytes_per_s: float = float("inf")
    network_latency_s: float = 0.0
    # inside_bytes_per_s, inside_latency_s: of one device's link to another in the machine
    inside_bytes_per_s: float = float("inf")
    inside_latency_s: float = 0.0
    # overhead_s, reduce_bytes_per_s, algorithms, curves: of an all-reduce, as :mod:`planner.models.communication` takes
    # them; a curve of so many devices goes before
    overhead_s: float = 0.0
    delay_s: float = 0.0
    reduce_bytes_per_s: float = float("inf")
    algorithms: tuple[str, ...] = USUAL_ALGORITHMS
    curves: Mapping[int, TransferCost] = field(default_factory=dict)

    @property
    def num_devices(self) -> int:
        """Devices of all its machines."""
        return self.num_machines * self.devices_per_machine

    def all_reduce(self, place: Place) -> TransferCost:
        """Return the cost of an all-reduce over the devices of a place, by its cheapest algorithm.

        Parameters
        ----------
        place
            Of a replicated stage. Two levels need equally many devices on every machine; where they are uneven, and no
            other algorithm is allowed, the ring is taken.
        """
        if curve := self.curves.get(place.replicas):
            return delayed(curve, self.delay_s)
        machines, most = place.num_machines, place.most_per_machine
        network, network_latency_s = (
            (self.network_bytes_per_s, self.network_latency_s) if machines > 1 else (float("inf"), 0.0)
        )
        participants = Participants(
            num_devices=[place.replicas],
            num_machines=[machines],
            devices_per_machine=most,
            network_bytes_per_s=network,
            network_latency_s=network_latency_s,
            inside_bytes_per_s=self.inside_bytes_per_s,
            inside_latency_s=self.inside_latency_s,
            overhead_s=self.overhead_s + self.delay_s,
            reduce_bytes_per_s=self.reduce_bytes_per_s,
        )
        allowed = [name for name in self.algorithms if place.is_even or name not in EVEN_ALL_REDUCES]
        return cheapest_of([ALL_REDUCES[name](participants).at(0) for name in allowed or ["ring"]])


@frozen
class LayerBytes:
    """The network in its linear order, in bytes: prefix sums with a leading 0, so that a run is one difference.

    ``cut_bytes`` is by position in front of a layer: 0 in front of the first and behind the last.
    """

    names: tuple[str, ...]
    weights_bytes: Floats
    gradients_bytes: Floats
    optimizer_bytes: Floats
    activations_bytes: Floats
    trainable_share: Floats
    cut_bytes: Floats
    line: Linearisation

    @classmethod
    def of(cls, dnn: Dnn, precision: Precision) -> "LayerBytes":
        """Return the bytes of a network.

        Parameters
        ----------
        dnn, precision
            L layers, and the bytes of their numbers.
        """
        line = linearise(dnn)
        trainable = _prefix([layer.num_trainable for layer in dnn.layers])
        moving = _prefix([layer.num_moving for layer in dnn.layers])
        return cls(
            names=line.names,
            weights_bytes=trainable * precision.weight_bytes + moving * STATISTIC_BYTES,
            gradients_bytes=trainable * precision.gradient_bytes,
            optimizer_bytes=trainable * precision.kept_bytes,
            activations_bytes=_prefix(kept_bytes(dnn, precision).tolist()),
            trainable_share=trainable / max(1.0, float(trainable[-1])),
            cut_bytes=np.array([0.0, *line.cut_elements.tolist(), 0.0]) * precision.activation_bytes,
            line=line,
        )


@frozen
class StageMemory:
    """Bytes of a stage on each of its devices; arrays where the stages were."""

    weights_bytes: Floats
    gradients_bytes: Floats
    optimizer_bytes: Floats
    # of one micro-batch in flight: outputs of the layers, and the input that the stage received
    in_flight_bytes: Floats
    error_bytes: Floats  # one outgoing and one incoming error

    def total_bytes(self, num_in_flight: Numbers) -> Floats:
        """Return the bytes of a stage; the reserve comes on top, once a device.

        Parameters
        ----------
        num_in_flight
            Micro-batches between forward and backward; a number, or one a stage.
        """
        fixed = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + self.error_bytes
        return fixed + num_in_flight * self.in_flight_bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class StageCosts:
    """What any stage of one question costs.

    ``first`` and ``last`` of its methods are positions of layers, 0 to L - 1, as numbers or as arrays that broadcast;
    what is returned has their shape, and ``num_samples`` are those of a micro-batch on one device, ``ceil(b / r)``.
    """

    # layers, machines: the network, and the groups that stages may stand on
    layers: LayerBytes
    machines: tuple[StageMachines, ...]
    latency_s: Floats  # between a machine of one group and a machine of another, by their indices
    reserve_bytes: float = 0.0  # on every device, beside what stages hold

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.layers.names)

    @cached_property
    def passes(self) -> tuple[tuple[Passes, Passes], ...]:
        """Prefix sums of forward and backward passes over the layers, with a leading 0, by group."""
        profiles = [one.profile for one in self.machines]
        return tuple((one.forward.map(_prefixes), one.backward.map(_prefixes)) for one in profiles)

    @cached_property
    def _held_bytes(self) -> Floats:
        """What layers hold, term by term: rows of prefix sums, so that a stage is one difference."""
        layers = self.layers
        return np.array(
            [layers.weights_bytes, layers.gradients_bytes, layers.optimizer_bytes, layers.activations_bytes]
        )

    @cached_property
    def _all_reduces(self) -> dict[Place, TransferCost]:
        """Costs of exchanges by place, as they are asked for: searches ask for few places, many times."""
        return {}

    @cached_property
    def _computing_s(self) -> dict[tuple[int, int, int, int], tuple[float, float, float]]:
        """Seconds of computing by first layer, last layer, group and samples."""
        return {}

    @cached_property
    def _syncs_s(self) -> dict[tuple[int, int, int, int, int], float]:
        """Seconds of exchanges by first layer, last layer, and group, start and replicas of the place."""
        return {}

    def forward_s(self, first: Positions, last: Positions, *, group: int, num_samples: Numbers) -> Floats:
        """Return the forward seconds of a micro-batch on one device.

        Parameters
        ----------
        first, last, num_samples
            Of the stage, see the class.
        group
            Index of the machines that it stands on.
        """
        return self.passes[group][0].between((first,), (np.asarray(last) + 1,), num_samples)

    def backward_s(self, first: Positions, last: Positions, *, group: int, num_samples: Numbers) -> Floats:
        """Return the backward seconds of a micro-batch on one device.

        Parameters
        ----------
        first, last, group, num_samples
            As of :meth:`forward_s`.
        """
        return self.passes[group][1].between((first,), (np.asarray(last) + 1,), num_samples)

    def computing_s(self, first: int, last: int, *, group: int, num_samples: int) -> tuple[float, float, float]:
        """Return the forward and backward seconds of a micro-batch on one device, and those of the update.

        Parameters
        ----------
        first, last, group, num_samples
            As of :meth:`forward_s`, of one stage.
        """
        key = first, last, group, num_samples
        if key not in self._computing_s:  # searches ask this for the same few stages, many times
            forward_s = self.forward_s(first, last, group=group, num_samples=num_samples)
            backward_s = self.backward_s(first, last, group=group, num_samples=num_samples)
            update_s = self.update_s(first, last, group=group)
            self._computing_s[key] = float(forward_s), float(backward_s), float(update_s)
        return self._computing_s[key]

    def update_s(self, first: Positions, last: Positions, *, group: int) -> Floats:
        """Return the seconds of the optimiser's step on the parameters of these layers.

        Parameters
        ----------
        first, last, group
            As of :meth:`forward_s`.
        """
        return _run(self.layers.trainable_share, first, last) * self.machines[group].profile.update_s

    def gradient_bytes(self, first: Positions, last: Positions) -> Floats:
        """Return the bytes of the gradients of these layers, which replicas exchange.

        Parameters
        ----------
        first, last
            Of the stage, see the class.
        """
        return _run(self.layers.gradients_bytes, first, last)

    def sync_s(self, first: int, last: int, place: Place) -> float:
        """Return the seconds in which the replicas of a stage exchange its gradients; 0 for one replica.

        Parameters
        ----------
        first, last, place
            Of one stage: its layers, and where it stands.
        """
        key = first, last, place.group, place.start, place.replicas
        if key not in self._syncs_s:  # searches ask this for the same few stages, many times
            if place.replicas > 1 and place not in self._all_reduces:
                self._all_reduces[place] = self.machines[place.group].all_reduce(place)
            size = np.asarray(self.gradient_bytes(first, last), dtype=np.float64)
            self._syncs_s[key] = float(self._all_reduces[place](size)) if place.replicas > 1 else 0.0
        return self._syncs_s[key]

    def boundary_bytes(self, position: Positions) -> Floats:
        """Return the bytes of one sample that cross a cut, in each direction.

        Parameters
        ----------
        position
            Of the layer behind the cut, 0 to L; a number or an array.
        """
        found: Floats = self.layers.cut_bytes[position]
        return found

    def transfer_s(self, position: int, before: Place, after: Place, *, microbatch_size: int) -> float:
        """Return the seconds of one micro-batch over a cut, in either direction; nothing crosses in 0 s.

        Parameters
        ----------
        position
            Of the layer behind the cut.
        before, after
            Where the two stages stand.
        microbatch_size
            Samples of all replicas together.
        """
        latency_s, rate = self.boundary_link(before, after)
        size = float(self.boundary_bytes(position)) * microbatch_size
        return latency_s + size / rate if size > 0 else 0.0

    def boundary_link(self, before: Place, after: Place) -> tuple[float, float]:
        """Return latency and bytes a second between the devices of two stages.

        Parameters
        ----------
        before, after
            Where they stand; chunks of the same devices send nothing.
        """
        one, other = self.machines[before.group], self.machines[after.group]
        if before == after:
            return 0.0, float("inf")
        is_inside = before.group == after.group and before.num_machines == after.num_machines == 1
        if is_inside and before.first_machine == after.first_machine:
            return one.inside_latency_s, one.inside_bytes_per_s * min(before.replicas, after.replicas)
        rate = min(before.num_machines * one.network_bytes_per_s, after.num_machines * other.network_bytes_per_s)
        return float(self.latency_s[before.group, after.group]), rate

    def memory(self, first: Positions, last: Positions, *, num_samples: Numbers) -> StageMemory:
        """Return what each device of a stage holds.

        Parameters
        ----------
        first, last, num_samples
            Of the stage, see the class.
        """
        end = np.asarray(last) + 1
        received, sent = self.layers.cut_bytes.take(first), self.layers.cut_bytes.take(end)
        weights, gradients, optimizer, activations = self._held_bytes.take(end, axis=1) - self._held_bytes.take(
            first, axis=1
        )
        return StageMemory(
            weights_bytes=weights,
            gradients_bytes=gradients,
            optimizer_bytes=optimizer,
            in_flight_bytes=(activations + received) * num_samples,
            error_bytes=(received + sent) * num_samples,
        )


def _prefix(values: ArrayLike) -> Floats:
    """Return prefix sums with a leading 0."""
    return np.concatenate(([0.0], np.cumsum(np.asarray(values, dtype=np.float64))))


def _prefixes(values: Floats) -> Floats:
    """Return prefix sums along the last axis, with a leading 0."""
    return np.concatenate((np.zeros_like(values[..., :1]), np.cumsum(values, axis=-1)), axis=-1)


def _run(prefix: Floats, first: Positions, last: Positions) -> Floats:
    """Return the sum of ``first`` to ``last``."""
    if not isinstance(last, int):
        last = np.asarray(last)
    found: Floats = prefix[last + 1] - prefix[first]
    return found
