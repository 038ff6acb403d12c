"""What an answer rests on, and what its reader should mind before paying."""

from planner.procurement.answer import Choice
from planner.procurement.fleet import Fleet
from planner.procurement.offer import Term
from planner.procurement.price_list import OLD_DAYS
from planner.procurement.question import Procurement
from planner.procurement.search import Fleets
from planner.words import usd_words

__all__ = ["assumptions_of", "key_assumptions_of", "warnings_of"]

_SHORT_S = 60.0  # of billing, which no run feels
_CHEAP = 0.2  # of the price on demand; spot machines usually cost 0.3 to 0.6 of it


def warnings_of(fleets: Fleets, choice: Choice) -> tuple[str, ...]:
    """Return what speaks against relying on an answer, that of its plans included."""
    return (
        *_contradictions(fleets),
        *_age_warnings(fleets.procurement, choice),
        *_spot_warnings(fleets.procurement, choice),
        *_granule_warnings(fleets, choice),
        *_plan_warnings(choice),
    )


def key_assumptions_of(choice: Choice) -> list[str]:
    """Return the assumptions that change the plans of the jobs, with their effect, each once."""
    return list(dict.fromkeys(line for plan in choice.plans.values() for line in plan.key_assumptions))


def assumptions_of(fleets: Fleets) -> list[str]:
    """Return what was assumed of the run and the error."""
    run, stretch = fleets.procurement.asked.run, fleets.stretch
    found = []
    if run.mean_time_between_failures is None:
        found.append("no machine fails (procure.run.mean_time_between_failures)")
    if not run.start_up:
        found.append("machines start at once (procure.run.start_up)")
    found += _numbers(fleets)
    if stretch != 1:
        found.append(f"training takes {stretch - 1:.0%} longer than predicted (--robust)")
    return found


def _numbers(fleets: Fleets) -> list[str]:
    """Return that a network is trained in fp32, where nobody asked for it."""
    jobs = fleets.procurement.jobs
    defaults = [oracle for job, oracle in zip(jobs, fleets.oracles, strict=True) if "dtype" not in job.question["dnn"]]
    one = Fleet(offers=fleets.offers[:1], counts=(1,))
    has_long = any(oracle.problem(one, has_pins=False).training.dtype == "fp32" for oracle in defaults)
    return ["numbers of 32 bits (dnn.dtype: bf16 or fp16 uses what most devices are bought for)"] if has_long else []


def _contradictions(fleets: Fleets) -> list[str]:
    """Return that a family found less on some machines than it had proven for more, where that came up."""
    number = fleets.num_contradictions
    words = f"{number} bounds of plans on more machines were beaten by plans on fewer; none is relied on"
    return [words] if number else []


def _age_warnings(procurement: Procurement, choice: Choice) -> list[str]:
    """Return that a price of the fleet is old, where it is."""
    oldest = min(offer.date for offer in choice.fleet.offers)
    age = (procurement.today - oldest).days
    if age <= OLD_DAYS:
        return []
    return [f"a price is of {oldest.isoformat()}, {age} days old; ask for today's before buying"]


def _granule_warnings(fleets: Fleets, choice: Choice) -> list[str]:
    """Return how much more the runs of a month may cost where each is billed in granules: their sum leaves them out."""
    if not fleets.procurement.is_monthly:
        return []
    rents = sum(
        count * offer.usd_per_h * offer.billing_s / 3600
        for offer, count in zip(choice.fleet.offers, choice.fleet.counts, strict=True)
        if offer.billing_s > _SHORT_S
    )
    words = f"machines are billed in long granules: up to {usd_words(rents * fleets.account.num_runs)} a month more"
    return [words] if rents else []


def _spot_warnings(procurement: Procurement, choice: Choice) -> list[str]:
    """Return what speaks against spot machines: no interruptions stated, or a price that is hardly to be had."""
    listed = {
        (offer.provider, offer.instance, offer.region): offer.usd_per_h
        for offer in procurement.prices.offers
        if offer.term is Term.ON_DEMAND
    }
    found = []
    if any(offer.term is Term.SPOT and not offer.interruptions_per_h for offer in choice.fleet.offers):
        found.append("spot machines are taken never to be taken away (procure.run.mean_time_between_interruptions)")
    for offer in choice.fleet.offers:
        usual = listed.get((offer.provider, offer.instance, offer.region))
        if offer.term is Term.SPOT and usual and offer.usd_per_h < _CHEAP * usual:
            share = offer.usd_per_h / usual
            found.append(f"{offer.instance} is listed at {share:.0%} of its price on demand: see what it costs today")
    return found


def _plan_warnings(choice: Choice) -> list[str]:
    """Return the warnings of the chosen plans, each once."""
    plans = choice.plans.values()
    return list(dict.fromkeys(warning for plan in plans for warning in (*plan.cautions, *plan.warnings)))
