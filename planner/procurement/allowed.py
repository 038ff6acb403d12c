"""What may be had of a price list: every offer on every term and network that a question has, at the prices that hold.

One function makes these for the search and for the comparison of rent and purchase, so that both see the same prices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from planner.procurement.networks import NetworkTier, with_tier
from planner.procurement.offer import Offer, PriceList, Term
from planner.procurement.spec import ProcureSpec

__all__ = ["allowed", "is_one_of", "matches_offer", "priced_offers"]


def allowed(asked: ProcureSpec, priced: Sequence[Offer]) -> tuple[tuple[Offer, ...], dict[str, int]]:
    """Return the offers that are asked for, and why the others are not, with how many."""
    found: list[Offer] = []
    left_out: dict[str, int] = {}
    for offer in priced:
        why = _refusal(asked, offer)
        if why is None:
            found.append(offer)
        else:
            left_out[why] = left_out.get(why, 0) + 1
    return tuple(found), left_out


def priced_offers(asked: ProcureSpec, tiers: Sequence[NetworkTier], prices: PriceList) -> tuple[Offer, ...]:
    """Return all offers of a list, asked for or not, on every term and network, discounts taken off."""
    return tuple(_discounted(asked, offer) for listed in prices.offers for offer in _variants(asked, tiers, listed))


def _variants(asked: ProcureSpec, tiers: Sequence[NetworkTier], offer: Offer) -> Iterator[Offer]:
    """Yield an offer on every term and network that it may be had with."""
    if offer.term is Term.BOUGHT and tiers and offer.network_bytes_per_s is None:
        yield from (with_tier(offer, tier) for tier in tiers)
        return
    yield offer
    if offer.term is Term.ON_DEMAND and asked.reserved is not None:
        name = f"{offer.name.removesuffix(f'/{Term.ON_DEMAND}')}/{Term.RESERVED}"
        rent = offer.usd_per_h * (1 - asked.reserved.discount)
        yield replace(offer, name=name, term=Term.RESERVED, usd_per_h=rent, committed_s=asked.reserved.commitment)


def _refusal(asked: ProcureSpec, offer: Offer) -> str | None:
    """Return why an offer may not be had; None where it may."""
    if offer.term not in asked.allowed_terms:
        return f"on other terms than {', '.join(asked.terms)}"
    for key, value in (("providers", offer.provider), ("regions", offer.region), ("devices", offer.device)):
        wanted = getattr(asked, key)
        if wanted is not None and not is_one_of(value, wanted):
            return f"of other {key} than {', '.join(wanted)}"
    if asked.instances is not None and not matches_offer(offer, asked.instances):
        return f"of other instances than {', '.join(asked.instances)}"
    if asked.exclude is not None and matches_offer(offer, asked.exclude):
        return "excluded"
    if offer.most == 0:
        return "with a quota of 0"
    needs_power = asked.power is not None or asked.objective == "energy"
    if offer.power_w is None and (needs_power or (asked.electricity is not None and offer.term is Term.BOUGHT)):
        return "of unknown power"
    return None


def is_one_of(value: str, patterns: Sequence[str]) -> bool:
    """Whether a name is one of some patterns (``*`` stands for anything)."""
    return any(fnmatchcase(value.lower(), pattern.lower()) for pattern in patterns)


def matches_offer(offer: Offer, patterns: Sequence[str]) -> bool:
    """Whether an offer is meant: by its name, instance, provider and instance, device, or network tier."""
    names = [offer.name, offer.instance, f"{offer.provider}/{offer.instance}", offer.device]
    names += [] if offer.tier is None else [offer.tier]
    return any(is_one_of(name, patterns) for name in names)


def _quota(asked: ProcureSpec, offer: Offer) -> int | None:
    """Return how many machines of an offer alone its quotas leave; None: no limit."""
    found = [number for name, number in asked.quotas.items() if matches_offer(offer, [name])]
    found += [offer.most] if offer.most is not None else []
    return min(found, default=None)


def _discounted(asked: ProcureSpec, offer: Offer) -> Offer:
    """Return an offer less the discount of its provider, spot machines as often interrupted as the question says."""
    discount = next((asked.discounts[name] for name in asked.discounts if name.lower() == offer.provider.lower()), 0.0)
    often = asked.run.mean_time_between_interruptions
    interruptions = offer.interruptions_per_h if often is None else 3600 / often
    return replace(
        offer,
        usd_per_h=offer.usd_per_h * (1 - discount),
        interruptions_per_h=interruptions if offer.term is Term.SPOT else 0.0,
        most=_quota(asked, offer),
    )
