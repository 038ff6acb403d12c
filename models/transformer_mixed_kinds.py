"""Seconds of a layer and of the ends of a transformer on each kind of machines, for many layouts at once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from planner.cost import Floats
from planner.models.group_costs import Group, groups_of
from planner.models.layouts import Layouts
from planner.models.roofline import Constants, DeviceRates
from planner.models.tiers import Tier
from planner.models.transformer_compute import Software
from planner.models.transformer_exchange import exchange_times, pipeline_exchanges
from planner.models.transformer_time import interval_times, reached_tiers
from planner.transformer import Transformer

__all__ = ["LAYER_PARTS", "KindSeconds", "MixedKind", "kind_seconds"]


LAYER_PARTS = ("compute", "recompute", "tensor", "expert", "context", "launch")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedKind:
    """Machines of one kind.

    Attributes
    ----------
    tiers
        How its devices are joined, from the inside outwards, as links are sold.
    rates
        Of its devices.
    between_bytes_per_s, between_latency_s
        Of one machine to machines of other kinds, one direction; infinite where there are none.
    """

    tiers: tuple[Tier, ...]
    rates: DeviceRates
    between_bytes_per_s: float = float("inf")
    between_latency_s: float = 0.0

    @property
    def joint_tiers(self) -> tuple[Tier, ...]:
        """The same, no wider outside of a machine than the links between kinds."""
        if self.between_bytes_per_s == float("inf"):
            return self.tiers
        if len(self.tiers) == 1:
            link = Tier(
                size=1, bandwidth_bytes_per_s=self.between_bytes_per_s, latency_s=self.between_latency_s, num_rails=1
            )
            return (*self.tiers, link)
        outside = [
            replace(
                tier,
                bandwidth_bytes_per_s=min(tier.bandwidth_bytes_per_s, self.between_bytes_per_s / tier.num_rails),
                latency_s=max(tier.latency_s, self.between_latency_s),
            )
            for tier in self.tiers[1:]
        ]
        return (self.tiers[0], *outside)


@dataclass(frozen=True, kw_only=True, eq=False)
class KindSeconds:
    """Seconds of one micro-batch on devices of one kind; arrays of shape (n,).

    Attributes
    ----------
    layer
        Of one layer, by part.
    layer_forward_s
        Of one layer's parts, what falls to the forward pass.
    computed_forward_s
        What one layer's forward pass computes, beside which weights may be gathered.
    embedding_s, head_s, embedding_forward_s, head_forward_s
        Both ways, and of that forward.
    transfer_s
        To the next stage on the same kind.
    kind, own, joint, constants, transformer
        What they are of: see :func:`kind_seconds`.
    """

    layer: Mapping[str, Floats]
    layer_forward_s: Floats
    computed_forward_s: Floats
    embedding_s: Floats
    head_s: Floats
    embedding_forward_s: Floats
    head_forward_s: Floats
    transfer_s: Floats
    transformer: Transformer
    kind: MixedKind
    own: Layouts
    joint: Layouts
    constants: Constants

    @cached_property
    def between_s(self) -> Floats:
        """To the next stage on another kind, as far as this side takes."""
        return _between_s(self.transformer, self.own, self.kind, self.constants)

    @cached_property
    def groups(self) -> Mapping[str, Group]:
        """Groups of the data ranks of all kinds, as if they stood here, by name."""
        return groups_of(reached_tiers(self.kind.joint_tiers, self.constants), self.joint)

    @property
    def rates(self) -> DeviceRates:
        """Of the devices."""
        return self.kind.rates

    @cached_property
    def layer_s(self) -> Floats:
        """Of one layer, both ways."""
        return np.asarray(sum(self.layer.values(), np.zeros(1)))


def kind_seconds(
    transformer: Transformer,
    own: Layouts,
    joint: Layouts,
    kind: MixedKind,
    *,
    software: Software,
    constants: Constants,
    expert_imbalance: float = 1.0,
) -> KindSeconds:
    """Return what a micro-batch takes on one kind.

    Parameters
    ----------
    own
        What stands on this kind: its own number of stages and of data ranks, at least 1 each.
    joint
        The same with the data ranks of all kinds.
    """
    found = interval_times(
        transformer,
        own,
        tiers=kind.tiers,
        rates=kind.rates,
        software=software,
        constants=constants,
        expert_imbalance=expert_imbalance,
    )
    layers = transformer.num_layers
    layer = {name: np.broadcast_to(found[name], len(own)) / layers for name in LAYER_PARTS}
    whole = sum(layer.values(), np.zeros(len(own)))
    return KindSeconds(
        layer=layer,
        layer_forward_s=whole * found["forward"] / (found["compute"] + found["recompute"]),
        computed_forward_s=found["forward"] / layers,
        embedding_s=found["embedding"],
        head_s=found["head"],
        embedding_forward_s=found["embedding_forward"],
        head_forward_s=found["head_forward"],
        transfer_s=found["transfer"],
        transformer=transformer,
        kind=kind,
        own=own,
        joint=joint,
        constants=constants,
    )


def _between_s(transformer: Transformer, own: Layouts, kind: MixedKind, constants: Constants) -> Floats:
    """Return the seconds in which one micro-batch's output leaves for another kind, or comes from it.

    All devices of a machine that hold the stage send or receive at the same time.
    """
    if kind.between_bytes_per_s == float("inf"):
        return np.zeros(len(own))
    sharing = np.minimum(kind.tiers[0].size, own.tensor * own.context * own.data)
    rate = np.broadcast_to(kind.between_bytes_per_s * constants.outside_efficiency / sharing, len(own))[None, :]
    pair = Group(
        num_members=np.full(len(own), 2.0),
        units=np.full(rate.shape, 2.0),
        members=np.ones(rate.shape),
        share_bytes_per_s=rate,
        alone_bytes_per_s=rate,
        latency_s=np.array([[kind.between_latency_s + constants.hop_s]]),
    )
    inside = groups_of(reached_tiers(kind.tiers, constants), own)
    sending = replace(own, pipeline=np.maximum(own.pipeline, 2))  # one stage here has a next one elsewhere
    times = exchange_times(pipeline_exchanges(transformer, sending), {**inside, "pipeline": pair})
    return np.asarray(sum((one.forward_s for one in times.values()), np.zeros(len(own))))
