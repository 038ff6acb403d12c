"""A question of what to buy or rent, read and checked: what is trained, what may be had, under which limits.

The trainings are ordinary questions of the product that lack their machines: :mod:`planner.procurement.fleet` adds the
machines of a fleet, so that whatever a plan can ask holds here, too.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from difflib import SequenceMatcher
from glob import escape
from math import inf
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.errors import InfeasibleError, SpecError
from planner.procurement.allowed import allowed, is_one_of, matches_offer, priced_offers
from planner.procurement.networks import NetworkTier, asked_tiers
from planner.procurement.offer import Offer, PriceList, Term
from planner.procurement.price_list import merged, read_price_list
from planner.procurement.spec import ProcurementSpec, ProcureSpec
from planner.procurement.training_checks import block_faults, training_faults
from planner.spec.network_file import with_network_files, with_networks
from planner.spec.source import Notes, Source, faults_of, nearest, read_source

__all__ = ["BUILT_IN", "Job", "Procurement", "load_procurement", "matches_offer"]

BUILT_IN = "built-in"
SCHEMA = "planner.procurement/1"
_ABOUT_MACHINES = ("procure", "cluster", "objective")
_MOST_NAMES = 5  # that are told where one was spelt wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training: its question without machines, how often a month, by when, on which part of the machines.

    ``runs_per_month`` is 0 where there is one run and no month.
    """

    name: str
    question: Mapping[str, Any]
    runs_per_month: float = 0.0
    deadline_s: float = inf
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Procurement:
    """What is asked.

    Attributes
    ----------
    asked
        The block ``procure``, checked and in SI units.
    source
        Its text: files are named from its folder, faults by its lines.
    jobs
        What is trained: one, or several that share the machines.
    offers
        What may be had of the price list, discounts taken off.
    prices
        The whole list, with its unusable rows.
    priced
        All offers of the list on every term and network, asked for or not, discounts taken off.
    left_out
        Offers that were not asked for, by why, with how many.
    families
        Those that are searched for every fleet; None: one whose search ends proven within a second.
    today
        Against which the age of the prices is told.
    resolved
        The question as plain data, as a plan's ``problem``.
    """

    asked: ProcureSpec
    source: Source
    jobs: tuple[Job, ...]
    offers: tuple[Offer, ...]
    prices: PriceList
    left_out: Mapping[str, int]
    families: tuple[str, ...] | None
    today: date
    resolved: Mapping[str, Any]
    priced: tuple[Offer, ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def is_monthly(self) -> bool:
        """Whether several trainings share the machines month after month."""
        return self.asked.jobs is not None


def load_procurement(question: str | Path | Mapping[str, Any], *, today: date) -> Procurement:
    """Return the question that a spec file or a mapping of the same keys asks.

    Raises
    ------
    SpecError
        With every fault of the text in one pass; of a price list with its own lines.
    """
    if isinstance(question, Mapping):
        source = Source(data=copy.deepcopy(with_networks(question)), file="", folder=Path(), positions={})
    else:
        source = read_source(Path(question))
    if source.data.get("schema") == SCHEMA:
        source = replace(source, data=source.data.get("problem"), positions={})
    if not isinstance(source.data, dict) or "procure" not in source.data:
        raise _no_block(source)
    if source.data["procure"] is None:  # the block is there, and everything in it left as it is
        source = replace(source, data={**source.data, "procure": {}})
    source = with_network_files(source)
    misplaced = block_faults(source)
    places = {fault.field for fault in misplaced}
    try:
        spec = ProcurementSpec.model_validate(source.data)
    except ValidationError as error:
        found = faults_of(error, source, ProcurementSpec)
        raise SpecError.of([*misplaced, *(fault for fault in found if fault.field not in places)]) from None
    if misplaced:
        raise SpecError.of(misplaced)
    return _built(spec, source, today)


def _no_block(source: Source) -> SpecError:
    """Return why a spec without the block is none."""
    problem = "there is no block procure, which says what may be bought or rented."
    return SpecError.of([source.fault(("procure",), problem, "Add e.g. procure: {deadline: 24 h, budget: 500 USD}.")])


def _built(spec: ProcurementSpec, source: Source, today: date) -> Procurement:
    """Return the question of a checked spec."""
    asked, notes = spec.procure, Notes(source)
    notes.faults += training_faults(spec, source)
    tiers = asked_tiers(asked.networks, source, notes, today)
    prices = _prices(asked, source, notes, today)
    if prices is None:
        raise SpecError.of(notes.faults)
    priced = priced_offers(asked, tiers, prices)
    offers, left_out = allowed(asked, priced)
    _check_names(asked, prices, priced, notes)
    if notes.faults:
        raise SpecError.of(notes.faults)
    jobs = _jobs(spec, source)
    assumptions = []
    if spec.families is None:
        assumptions.append(
            "families: hybrid for transformers, all_reduce for other networks; name others under families"
        )
    if not offers:
        reasons = "; ".join(f"{number} {why}" for why, number in left_out.items())
        number = len(prices.offers)
        raise InfeasibleError(f"of {number} offer{'s' * (number != 1)} none may be had: {reasons}.")
    return Procurement(
        asked=_joined(asked, tiers),
        source=source,
        jobs=jobs,
        offers=offers,
        prices=prices,
        priced=priced,
        left_out=left_out,
        families=None if spec.families is None else tuple(spec.families),
        today=today,
        resolved=copy.deepcopy(source.data),
        assumptions=tuple(assumptions),
    )


def _prices(asked: ProcureSpec, source: Source, notes: Notes, today: date) -> PriceList | None:
    """Return the lists that are named, as one."""
    custom = [device.name for device in asked.custom_devices]
    lists = [
        notes.attempt(
            ("procure", "prices", index),
            lambda name=name: read_price_list(  # type: ignore[misc]
                None if name == BUILT_IN else source.folder / name, today=today, custom_devices=custom
            ),
        )
        for index, name in enumerate(asked.prices)
    ]
    return None if None in lists else notes.attempt(("procure", "prices"), lambda: merged(lists))


def _joined(asked: ProcureSpec, tiers: Sequence[NetworkTier]) -> ProcureSpec:
    """Return the question with the machines that a tier can join as one more quota of all offers that have it."""
    most = {f"*/{Term.BOUGHT}/{escape(tier.name)}": tier.most for tier in tiers if tier.most is not None}
    return asked.model_copy(update={"quotas": {**most, **asked.quotas}})


def _known(word: str, names: Sequence[str]) -> str:
    """Return the name that was meant, or of many names those that are most like it."""
    known = sorted(set(names))
    words = nearest(word, known)
    if words.startswith("Did") or len(known) <= _MOST_NAMES:
        return words
    like = sorted(known, key=lambda name: -SequenceMatcher(None, word.lower(), name.lower()).ratio())
    return f"The nearest of {len(known)}: {', '.join(like[:_MOST_NAMES])}."


def _check_names(asked: ProcureSpec, prices: PriceList, priced: Sequence[Offer], notes: Notes) -> None:
    """Refuse patterns that no offer of the list has: a name that was spelt wrong must not be taken for a wish."""
    known = {
        "providers": [offer.provider for offer in prices.offers],
        "regions": [offer.region for offer in prices.offers],
        "devices": [offer.device for offer in prices.offers],
    }
    for key, names in known.items():
        for index, pattern in enumerate(getattr(asked, key) or ()):
            if not any(is_one_of(name, [pattern]) for name in names):
                notes.fault(("procure", key, index), f"no offer has it: {pattern!r}.", _known(pattern, names), pattern)
    instances = [offer.instance for offer in prices.offers] + [one.name for one in prices.unusable]
    instances += [offer.tier for offer in priced if offer.tier is not None]
    for key in ("instances", "exclude", "quotas"):
        for index, pattern in enumerate(getattr(asked, key) or ()):
            if not any(matches_offer(offer, [pattern]) for offer in (*prices.offers, *priced)):
                place = pattern if key == "quotas" else index
                notes.fault(
                    ("procure", key, place), f"no offer is meant by {pattern!r}.", _known(pattern, instances), pattern
                )
    for name in asked.discounts:
        providers = sorted(set(known["providers"]))
        if name.lower() not in {one.lower() for one in providers}:
            notes.fault(("procure", "discounts", name), f"no provider is called {name!r}.", _known(name, providers))


def _jobs(spec: ProcurementSpec, source: Source) -> tuple[Job, ...]:
    """Return what is trained, as questions that lack their machines."""
    common = {key: value for key, value in source.data.items() if key not in _ABOUT_MACHINES and value is not None}
    if spec.procure.jobs is None:
        deadline = spec.procure.deadline
        return (Job(name="training", question=common, deadline_s=inf if deadline is None else deadline),)
    given = source.data["procure"]["jobs"]
    return tuple(
        Job(
            name=job.name,
            question={**common, "dnn": dict(plain["dnn"])},
            runs_per_month=job.runs_per_month,
            deadline_s=inf if job.deadline is None else job.deadline,
            share=job.share,
        )
        for job, plain in zip(spec.procure.jobs, given, strict=True)
    )
