"""What stages have of the network by where their devices stand: the same for micro-batches of all sizes."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from planner.cost import Floats, TransferCost
from planner.models.pipeline_places import Place
from planner.models.pipeline_stages import StageCosts

__all__ = ["Run", "Spots"]

Run = tuple[int, int, int]  # a group, and the least and the most of its devices that a choice stands for


class Spots:
    """Costs of exchanges and links of boundaries by choice and place, each found once.

    Parameters
    ----------
    places
        By group, the devices of a machine.
    is_coarse
        Whether a choice stands for several numbers of devices, wherever they stand.
    """

    def __init__(self, costs: StageCosts, places: Sequence[int], *, is_coarse: bool) -> None:
        self._costs, self._places, self._is_coarse = costs, places, is_coarse
        self._machines, self._latency_s = costs.machines, costs.latency_s
        self.num_places = (1,) * len(places) if is_coarse else tuple(places)
        self.exchanges: list[TransferCost | None] = []
        self._kinds: dict[Any, int] = {}
        self._exchanges: dict[Run, list[int]] = {}
        self._links: dict[tuple[Run, bool], tuple[Floats, Floats]] = {}
        self._between: dict[tuple[Run, int, Run, int], tuple[float, float]] = {}

    def place(self, run: Run, start: int) -> Place:
        """Return the place of a choice's least devices."""
        group, least, _ = run
        return Place(group=group, start=start, replicas=least, devices_per_machine=self._places[group])

    @cached_property
    def _starts(self) -> range:
        """Places on a machine."""
        return range(max(self.num_places))

    def exchanges_of(self, run: Run) -> list[int]:
        """Return which of :attr:`exchanges` the gradients of a choice take, by place."""
        if run not in self._exchanges:
            self._exchanges[run] = [self._exchange_at(self._at(run, start)) for start in self._starts]
        return self._exchanges[run]

    def links_of(self, run: Run, *, is_out: bool) -> tuple[Floats, Floats]:
        """Return latencies and rates that a boundary behind, or before, a choice could have, by place and link.

        Links: to every group by the network, and last inside the machine, where a device is left there.
        """
        if (run, is_out) not in self._links:
            self._links[run, is_out] = self._new_links(run, is_out=is_out)
        return self._links[run, is_out]

    def between(self, left: Run, place: int, right: Run, start: int) -> tuple[float, float]:
        """Return latency and rate from the least devices of a choice to those of the next stage's.

        Stages of one group stand side by side; the next one of another group stands at ``start``.
        """
        key = (left, place, right, start)
        if key not in self._between:
            before, after = self.place(left, place), self.place(right, start)
            if before.group == after.group:
                after = replace(after, start=before.start + before.replicas)
            self._between[key] = self._costs.boundary_link(before, after)
        return self._between[key]

    def _at(self, run: Run, start: int) -> Place:
        """Return the place of a choice's least devices, where its group has so many places."""
        return self.place(run, start % self.num_places[run[0]])

    def _exchange_at(self, spot: Place) -> int:
        """Return which exchange it is; a new one if there was none like it."""
        curves = self._machines[spot.group].curves
        if self._is_coarse:
            # On whole machines each cost rises with their number: fewer, standing evenly, take no more.
            whole = spot.replicas // spot.devices_per_machine * spot.devices_per_machine
            spot = replace(spot, replicas=max(whole, 1))
            is_free = whole <= spot.devices_per_machine or bool(curves)
        else:
            is_free = spot.replicas == 1
        key = None if is_free else (spot.group, spot.replicas, spot.num_machines, spot.most_per_machine, spot.is_even)
        if key not in self._kinds:
            self._kinds[key] = len(self.exchanges)
            self.exchanges.append(None if is_free else self._machines[spot.group].all_reduce(spot))
        return self._kinds[key]

    def _new_links(self, run: Run, *, is_out: bool) -> tuple[Floats, Floats]:
        """Return latencies and rates by place and link."""
        machines, (group, least, most) = self._machines, run
        own = machines[group]
        shape = (len(self._starts), len(machines) + 1)
        late_s, rates = np.full(shape, np.inf), np.full(shape, np.inf)
        for a in self._starts:
            spot = self._at(run, a)
            if self._is_coarse:  # the widest place, and room beside it wherever there could be
                stands_on = replace(spot, start=own.devices_per_machine - 1, replicas=most).num_machines
                left = own.devices_per_machine - 1 if least < own.devices_per_machine else 0
            else:
                stands_on, is_one = spot.num_machines, spot.num_machines == 1
                beside = own.devices_per_machine - spot.start - spot.replicas if is_out else spot.start
                left = beside if is_one else 0
            late_s[a, :-1] = self._latency_s[group]
            rates[a, :-1] = np.minimum(min(stands_on, own.num_machines) * own.network_bytes_per_s, self._widest)
            if left > 0:
                late_s[a, -1] = own.inside_latency_s
                rates[a, -1] = min(most, left) * own.inside_bytes_per_s
        return late_s, rates

    @cached_property
    def _widest(self) -> Floats:
        """Bytes a second that all machines of a group send at most, by group."""
        return np.array([one.num_machines * one.network_bytes_per_s for one in self._machines])
