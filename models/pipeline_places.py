"""Where the stages of a pipeline stand: machines in a line, and what every stage's devices share."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.cost import Profile, TransferCost
from planner.models.collectives import (
    cheapest_of,
    delayed,
    double_binary_tree_all_reduces,
    ring_all_reduces,
    two_level_all_reduces,
)

__all__ = ["Place", "PlaceError", "Stage", "StageMachines", "places_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The layers ``first`` to ``last`` on ``replicas`` devices of the machine group with index ``group``."""

    first: int
    last: int
    group: int = 0
    replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
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

    Raises
    ------
    PlaceError
        If a group has too few devices.

    Examples
    --------
    Three stages on machines of four devices stand on one, two and one machine:

    >>> [place.num_machines for place in _places([(0, 3), (0, 2), (0, 3)], [4])]
    [1, 2, 1]
    """
    stages = tuple(stages)
    places = _places([(stage.group, stage.replicas) for stage in stages], [one.devices_per_machine for one in machines])
    for place in places:
        if place.start + place.replicas > machines[place.group].num_devices:
            needed = sum(stage.replicas for stage in stages if stage.group == place.group)
            raise PlaceError(place.group, needed)
    return places


def _places(taken: Sequence[tuple[int, int]], devices_per_machine: Sequence[int]) -> tuple[Place, ...]:
    """Return the places of (group, replicas), one after another."""
    free = [0] * len(devices_per_machine)
    places = []
    for group, replicas in taken:
        places.append(
            Place(group=group, start=free[group], replicas=replicas, devices_per_machine=devices_per_machine[group])
        )
        free[group] += replicas
    return tuple(places)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageMachines:
    """A machine group as stages see it; rates are those that are reached, efficiency included.

    Attributes
    ----------
    profile
        Seconds per sample of every layer on its device, and ``update_s`` of the whole network.
    memory_limit_bytes
        What a device may hold.
    network_bytes_per_s, network_latency_s
        Of all network cards of a machine, one direction; between two of its machines.
    inside_bytes_per_s, inside_latency_s
        Of one device's link to another in the machine.
    overhead_s, reduce_bytes_per_s, algorithms, curves
        Of an all-reduce, as :mod:`planner.models.collectives` takes them; a curve of so many devices goes before.
    """

    name: str
    num_machines: int
    devices_per_machine: int
    profile: Profile
    memory_limit_bytes: float = float("inf")
    network_bytes_per_s: float = float("inf")
    network_latency_s: float = 0.0
    inside_bytes_per_s: float = float("inf")
    inside_latency_s: float = 0.0
    overhead_s: float = 0.0
    delay_s: float = 0.0
    reduce_bytes_per_s: float = float("inf")
    algorithms: tuple[str, ...] = ("ring", "tree", "two_level")
    curves: Mapping[int, TransferCost] = field(default_factory=dict)

    @property
    def num_devices(self) -> int:
        """Devices of all its machines."""
        return self.num_machines * self.devices_per_machine

    def all_reduce(self, place: Place) -> TransferCost:
        """Return the cost of an all-reduce over the devices of a place, by its cheapest algorithm.

        Two levels need equally many devices on every machine; where they are uneven, and no other algorithm is
        allowed, the ring is taken.
        """
        if curve := self.curves.get(place.replicas):
            return delayed(curve, self.delay_s)
        machines, most = place.num_machines, place.most_per_machine
        spans = machines > 1
        network = self.network_bytes_per_s if spans else float("inf")
        inside = self.inside_bytes_per_s if most > 1 else float("inf")
        inside_latency_s = self.inside_latency_s if most > 1 else 0.0
        network_latency_s = self.network_latency_s if spans else 0.0
        flat: dict[str, Any] = {
            "bandwidth_bytes_per_s": min(network, inside),
            "latency_s": max(network_latency_s, inside_latency_s),
            "overhead_s": self.overhead_s + self.delay_s,
            "reduce_bytes_per_s": self.reduce_bytes_per_s,
        }
        forms: dict[str, TransferCost] = {"ring": ring_all_reduces(num_devices=[place.replicas], **flat).at(0)}
        trees = double_binary_tree_all_reduces(num_devices=[machines if spans else most], **flat).at(0)
        chain_s = 2 * (most - 1) * inside_latency_s if spans else 0.0
        forms["tree"] = delayed(trees, chain_s)
        if place.is_even:
            forms["two_level"] = two_level_all_reduces(
                num_machines=[machines],
                devices_per_machine=most,
                inside_bytes_per_s=inside,
                network_bytes_per_s=network,
                inside_latency_s=inside_latency_s,
                network_latency_s=network_latency_s,
                overhead_s=self.overhead_s + self.delay_s,
                reduce_bytes_per_s=self.reduce_bytes_per_s,
            ).at(0)
        allowed = [forms[name] for name in self.algorithms if name in forms]
        return cheapest_of(allowed or [forms["ring"]])
