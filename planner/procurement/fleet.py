"""Fleets: which offers go together, and the question that a fleet's machines make of a training.

Machines train together within one region of one provider. Machines whose network is unknown train alone. All bought
machines of a fleet have one network tier.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from planner.letters import visible
from planner.procurement.offer import Offer, Term
from planner.procurement.question import Procurement
from planner.units import Dimension, format_exact

__all__ = ["Fleet", "Hardware", "Market", "hardware_of", "markets_of", "question_of"]

_BURDENS = (  # what makes an offer worse the more it is, whatever is asked
    *("usd_per_h", "least_billed_s", "committed_s", "interruptions_per_h", "power_w"),
    *("purchase_usd", "hosting_usd_per_month"),
)

Hardware = tuple[str, int, str | None, float | None, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """Offers that may be combined, and how many machines of each there can be."""

    offers: tuple[Offer, ...]
    most: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """So many machines of each offer of a market."""

    offers: tuple[Offer, ...]
    counts: tuple[int, ...]

    @property
    def num_machines(self) -> int:
        """Machines of all offers."""
        return sum(self.counts)

    @property
    def num_devices(self) -> int:
        """Devices of all machines."""
        return sum(count * offer.devices_per_machine for offer, count in zip(self.offers, self.counts, strict=True))

    @property
    def headline(self) -> str:
        """``4 x p4d.24xlarge (spot), 1 x c5n.18xlarge``; of bought machines with the network tier."""
        parts = [
            f"{count} x {offer.instance}" + (f" ({_terms(offer)})" if offer.term != "on-demand" else "")
            for offer, count in zip(self.offers, self.counts, strict=True)
        ]
        return ", ".join(parts)


def _terms(offer: Offer) -> str:
    """Return the term of an offer, with its network tier."""
    return str(offer.term) if offer.tier is None else f"{offer.term}, {offer.tier}"


def hardware_of(offer: Offer) -> Hardware:
    """Return what a training sees of an offer: two offers of equal hardware train alike, whatever they cost."""
    return offer.device, offer.devices_per_machine, offer.inside, offer.network_bytes_per_s, offer.latency_s


def markets_of(procurement: Procurement, offers: Sequence[Offer], num_types: int) -> list[Market]:
    """Return every set of so many offers that may make a fleet.

    Two offers of equal hardware are combined only where neither is as good as the other in everything: else all
    machines may just as well be of the better one, unless there are too few of it.
    """
    found = []
    for chosen in combinations(offers, num_types):
        if _go_together(chosen):
            most = tuple(_most(procurement, offer, num_types) for offer in chosen)
            if min(most) >= 1:
                found.append(Market(offers=chosen, most=most))
    return found


def _go_together(offers: Sequence[Offer]) -> bool:
    """Whether machines of these offers can train together, and it is worth a thought."""
    if len(offers) == 1:
        return True
    places = {(offer.provider, offer.region) for offer in offers}
    if len(places) > 1 or any(offer.network_bytes_per_s is None for offer in offers):
        return False
    if len({offer.tier for offer in offers if offer.term is Term.BOUGHT}) > 1:
        return False
    return not any(_replaces(one, other) or _replaces(other, one) for one, other in combinations(offers, 2))


def _replaces(one: Offer, other: Offer) -> bool:
    """Whether any machine of the other offer may just as well be one of this: like hardware, and nothing is worse."""
    if one.most is not None or hardware_of(one) != hardware_of(other):
        return False
    if (one.term is Term.BOUGHT) is not (other.term is Term.BOUGHT) or (one.power_w is None) is not (
        other.power_w is None
    ):
        return False
    if one.purchase_usd / one.useful_life_s > other.purchase_usd / other.useful_life_s:
        return False
    granules = other.billing_s / one.billing_s if one.billing_s else 1.0
    return granules == round(granules) > 0 and all(
        getattr(one, name) <= getattr(other, name) for name in _BURDENS if getattr(one, name) is not None
    )


def _most(procurement: Procurement, offer: Offer, num_types: int) -> int:
    """Return how many machines of an offer there can be."""
    asked = procurement.asked
    limits = [asked.most_devices // offer.devices_per_machine]
    if offer.most is not None:
        limits.append(offer.most)
    if offer.network_bytes_per_s is None:
        limits.append(1)
    if asked.machines is not None:
        most = asked.machines.exactly or asked.machines.at_most
        limits += [] if most is None else [most - (num_types - 1)]
    return min(limits)


def question_of(
    procurement: Procurement, question: Mapping[str, Any], fleet: Fleet, families: Sequence[str]
) -> dict[str, Any]:
    """Return a training's question with the machines of a fleet, as :func:`planner.load` reads it."""
    machines = [
        _machines(procurement, offer, count) for offer, count in zip(fleet.offers, fleet.counts, strict=True) if count
    ]
    names = [machine["name"] for machine in machines]
    if len(set(names)) < len(names):  # one instance on two terms
        for machine, offer in zip(machines, fleet.offers, strict=True):
            machine["name"] = f"{offer.instance} {offer.term}"
    return {
        **question,
        "cluster": {"name": "fleet", "machines": machines},
        "objective": "training_time",
        "families": list(families),
    }


def _machines(procurement: Procurement, offer: Offer, count: int) -> dict[str, Any]:
    """Return a group of machines, as a spec has it."""
    custom = {visible(device["name"]): device for device in procurement.resolved["procure"].get("custom_devices") or ()}
    found: dict[str, Any] = {
        "name": offer.instance,
        "count": count,
        "device": custom.get(offer.device, offer.device),
        "devices": offer.devices_per_machine,
        "nics": 1,  # the offer's rate is that of the machine, all its cards together
    }
    if offer.inside is not None and offer.devices_per_machine > 1:
        found["inside"] = offer.inside
    if offer.network_bytes_per_s is not None:
        found["network"] = format_exact(offer.network_bytes_per_s, Dimension.RATE)
        found["latency"] = format_exact(offer.latency_s, Dimension.TIME)
    return found
