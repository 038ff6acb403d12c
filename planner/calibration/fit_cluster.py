"""The law of all-reduces on the cluster of a question: its rates and latencies, with overhead and efficiency fitted.

The cheapest of the allowed algorithms counts at every size, as in the family ``all_reduce``. A share of a link's rate
that no timing depends on stays at 1, and is named. The error is of numbers of devices left out whole, one at a time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from planner.calibration.fit import log_ratio, robust_fit, spread
from planner.calibration.fit_groups import Law, Points, scored
from planner.calibration.read_collectives import Group
from planner.cluster import Cluster
from planner.cost import Floats, TransferCost
from planner.models.collectives import (
    Affines,
    cheapest_of,
    double_binary_tree_all_reduces,
    ring_all_reduces,
    two_level_all_reduces,
)

__all__ = ["Links", "fit_cluster_law", "layout_of"]

_MOST_OVERHEAD_S = 1.0
_START = {"overhead_s": 0.5, "bandwidth_efficiency": 0.7, "inside_efficiency": 0.7}
_SEEN = 0.01  # a share that moves no prediction by this much when it changes by half is not seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What a law is of: the cluster, the algorithms that may be used, and bytes that a device adds up in a second."""

    cluster: Cluster
    algorithms: tuple[str, ...]
    reduce_bytes_per_s: float = inf

    def costs(self, layout: tuple[int, int], values: Mapping[str, float]) -> list[TransferCost]:
        """Return the cost of every algorithm on so many machines, and devices of each.

        The closed forms are put together as the family ``all_reduce`` does it; a test holds them together.
        """
        machines, devices = layout
        link = self.cluster.ring_link(machines) if machines > 1 else None
        insides = [group.inside for group in self.cluster.machine_groups if group.inside is not None and devices > 1]
        share, inside_share = (values.get(name, 1.0) for name in ("bandwidth_efficiency", "inside_efficiency"))
        net_rate, net_latency_s = (inf, 0.0) if link is None else (link.bandwidth_bytes_per_s * share, link.latency_s)
        in_rate = min((one.bandwidth_bytes_per_s for one in insides), default=inf) * inside_share
        in_latency_s = max((one.latency_s for one in insides), default=0.0)
        overhead_s, add_rate = values["overhead_s"], self.reduce_bytes_per_s
        rate, latency_s = min(net_rate, in_rate), max(net_latency_s, in_latency_s)
        chain_s = 2 * (devices - 1) * in_latency_s if machines > 1 else 0.0
        found: dict[str, Affines] = {
            "ring": ring_all_reduces(
                num_devices=[machines * devices],
                bandwidth_bytes_per_s=rate,
                latency_s=latency_s,
                overhead_s=overhead_s,
                reduce_bytes_per_s=add_rate,
            ),
            "tree": double_binary_tree_all_reduces(
                num_devices=[machines if machines > 1 else devices],
                bandwidth_bytes_per_s=rate,
                latency_s=latency_s,
                overhead_s=overhead_s + chain_s,
                reduce_bytes_per_s=add_rate,
            ),
            "two_level": two_level_all_reduces(
                num_machines=[machines],
                devices_per_machine=[devices],
                inside_bytes_per_s=in_rate,
                network_bytes_per_s=net_rate,
                inside_latency_s=in_latency_s,
                network_latency_s=net_latency_s,
                overhead_s=overhead_s,
                reduce_bytes_per_s=add_rate,
            ),
        }
        return [found[name].at(0) for name in self.algorithms]


def layout_of(cluster: Cluster, num_devices: int, num_machines: int | None = None) -> tuple[int, int] | None:
    """Return machines and devices of each for so many devices: full machines, unless told; None where none fits."""
    inside = min(group.devices_per_machine for group in cluster.machine_groups)
    if num_machines is None:
        num_machines = 1 if num_devices <= inside else num_devices // inside
    devices = num_devices // num_machines
    fits = devices * num_machines == num_devices and devices <= inside and num_machines <= cluster.num_machines
    return (num_machines, devices) if fits else None


def fit_cluster_law(groups: Sequence[Group], links: Links) -> Law | None:
    """Return the law of a cluster; None where no group fits its machines."""
    layouts = {group.num_devices: layout_of(links.cluster, group.num_devices, group.num_machines) for group in groups}
    used = [group for group in groups if layouts[group.num_devices] is not None]
    if not used:
        return None
    fits = {number: layout for number, layout in layouts.items() if layout is not None}
    names = _names(fits.values())
    model = _ClusterModel(links, used, fits, names)
    unseen = [name for name in names[1:] if not model.sees(name)]
    if unseen:
        model = _ClusterModel(links, used, fits, [name for name in names if name not in unseen])
    notes = [f"{name} stays at 1: no timing depends on it" for name in unseen]
    if skipped := [str(number) for number, layout in layouts.items() if layout is None]:
        notes.append(f"{', '.join(skipped)} devices do not fill machines of the cluster: not in the law")
    return model.law(notes)


def _names(layouts: Iterable[tuple[int, int]]) -> list[str]:
    """Return the parameters that such layouts may depend on."""
    every = list(layouts)
    is_outside, is_inside = any(machines > 1 for machines, _ in every), any(devices > 1 for _, devices in every)
    return ["overhead_s", *["bandwidth_efficiency"] * is_outside, *["inside_efficiency"] * is_inside]


class _ClusterModel:
    """The fit of some parameters to some groups."""

    def __init__(
        self, links: Links, groups: Sequence[Group], layouts: Mapping[int, tuple[int, int]], names: Sequence[str]
    ) -> None:
        self.links, self.groups, self.layouts, self.names = links, groups, layouts, list(names)
        self.points = Points.of(groups)
        self.unit_s = float(self.points.time_s.min())
        self.values = self.fit(self.points)

    def predicted(self, values: Mapping[str, float], at: Points) -> Floats:
        """Return the seconds of some points."""
        seconds = np.empty(len(at.time_s))
        for number in np.unique(at.num_devices).tolist():
            rows = at.num_devices == number
            forms = self.links.costs(self.layouts[int(number)], values)
            seconds[rows] = np.min([form(at.size_bytes[rows]) for form in forms], axis=0)
        return seconds

    def named(self, x: Sequence[float]) -> dict[str, float]:
        """Return parameters of order 1 as values by name."""
        found = dict(zip(self.names, x, strict=True))
        return {**found, "overhead_s": found["overhead_s"] * self.unit_s}

    def residuals(self, x: Floats, at: Points) -> Floats:
        """Return the log residuals of some points."""
        return log_ratio(self.predicted(self.named(x.tolist()), at), at.time_s)

    def fit(self, at: Points) -> dict[str, float]:
        """Return the parameters that fit some points best."""
        more = len(self.names) - 1
        found = robust_fit(
            lambda x: self.residuals(x, at),
            [_START[name] for name in self.names],
            lower=[0.0, *[1e-4] * more],
            upper=[_MOST_OVERHEAD_S / self.unit_s, *[10.0] * more],
            tolerance=1e-6,
        )
        return self.named(found.tolist())

    def sees(self, name: str) -> bool:
        """Whether any timing depends on a parameter."""
        low, high = (
            self.predicted({**self.values, name: self.values[name] * factor}, self.points) for factor in (1 / 1.5, 1.5)
        )
        return float(np.abs(np.log(high / low)).max()) > _SEEN

    def left_out(self, inside: Points, outside: Points) -> Floats | None:
        """Return predictions by a fit to the other groups; None where those lack a kind of link."""
        kept = [self.layouts[int(number)] for number in np.unique(inside.num_devices).tolist()]
        if not set(self.names) <= set(_names(kept)):
            return None
        return self.predicted(self.fit(inside), outside)

    def cost_of(self, num_devices: int) -> TransferCost:
        """Return the cost on so many devices that fill machines of the cluster."""
        layout = layout_of(self.links.cluster, num_devices)
        if layout is None:
            raise ValueError(f"{num_devices} devices do not fill machines of the cluster")
        return cheapest_of(self.links.costs(layout, self.values))

    def law(self, notes: Sequence[str]) -> Law:
        """Return the law with its intervals and scores."""
        score, by_group = scored(self.points, self.groups, self.left_out)
        units = np.array([self.unit_s if name == "overhead_s" else 1.0 for name in self.names])
        found = np.array(list(self.values.values())) / units
        ends = np.array(spread(lambda x: self.residuals(x, self.points), found)) * units[:, None]
        above = [
            f"{name} {share:.3g} is above 1: the links are faster than the cluster says"
            for name, share in self.values.items()
            if name.endswith("efficiency") and share > 1
        ]
        return Law(
            name=f"cheapest of {', '.join(self.links.algorithms)}, with the rates and latencies of the spec's cluster",
            parameters=self.values,
            intervals={name: (low, high) for name, (low, high) in zip(self.names, ends.tolist(), strict=True)},
            score=score,
            by_group=by_group,
            cost_of=self.cost_of,
            notes=(*notes, *above),
        )
