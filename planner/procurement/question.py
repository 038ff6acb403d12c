"""A question of what to buy or rent, read and checked: what is trained, what may be had, under which limits.

The trainings are ordinary questions of the product that lack their machines: :mod:`planner.procurement.fleet` adds the
machines of a fleet, so that whatever a plan can ask holds here, too. The chapter reads in the order of a question: the
block ``procure`` of a spec; the network tiers that bought machines may have; what may be had of a price list, at the
prices that hold; what a training must say where its machines are what is asked; and all of it together.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from glob import escape
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from planner.constraints import read_range
from planner.data.presets import networks_text
from planner.errors import Fault, InfeasibleError, SpecError
from planner.frozen import frozen
from planner.models.failures import LLAMA3_DEVICE_S
from planner.names import fold
from planner.problem import Range
from planner.procurement.currencies import checked_rates
from planner.procurement.prices import (
    DEFAULT_LATENCY_S,
    GBIT_BYTES,
    US_S,
    Offer,
    PriceList,
    Term,
    in_force,
    merged,
    read_price_list,
    read_rows,
    refuse,
    text_of,
)
from planner.question.blocks import CalibrationSpec as _CalibrationSpec
from planner.question.blocks import DeviceSpec
from planner.question.build import problem_of, source_of
from planner.question.dnn import with_network_files
from planner.question.source import Notes, Source, faults_of, nearest
from planner.question.spec import CalibrationOf, CompressionOptionSpec, ConstraintsSpec, DnnSpec, FixSpec, RangeOf
from planner.question.values import (
    Bytes,
    Count,
    FamilyOf,
    File,
    Model,
    Name,
    Positive,
    PositiveBytes,
    Rate,
    Seconds,
    Share,
    Usd,
    UsdRate,
    Watts,
    tag,
)
from planner.units import Dimension, parse, plain

# --- The block ``procure`` of a spec: what may be had, under which limits, and what a run needs beside its training

MOST_TYPES = 3
_EMPTY = BeforeValidator(lambda value: {} if value is None else value)
TermName = Literal["on-demand", "spot", "reserved", "bought"]
ObjectiveName = Literal["cost", "time", "energy", "value_of_time"]


def _as_list(value: object) -> object:
    """Read one name as a list of one."""
    return [value] if isinstance(value, str) else value


Files = Annotated[list[File], BeforeValidator(_as_list, json_schema_input_type=File | list[File]), Field(min_length=1)]
Names = Annotated[list[Name], BeforeValidator(_as_list, json_schema_input_type=Name | list[Name]), Field(min_length=1)]


_BETWEEN = (
    *("checkpoint_interval", "mean_time_between_failures", "mean_time_between_failures_of_device"),
    "mean_time_between_interruptions",
)


def is_budget_alone(block: Mapping[str, object]) -> bool:
    """Whether a block ``procure`` gives a budget, and neither an objective nor by when a training must be done."""
    others = ("objective", "usd_per_hour_saved", "deadline", "jobs")
    budgets = (block.get("budget"), block.get("budget_rate"))
    return any(one is not None for one in budgets) and all(block.get(name) is None for name in others)


class RunSpec(Model):
    """What a run takes beside its training.

    ``mean_time_between_failures`` is of one machine, for whatever reason but the interruptions of spot machines; of one
    device it may be that of a published training, ``llama3``. A checkpoint takes a time that is given, or its bytes
    over the rate of storage, all machines together.
    """

    start_up: Seconds = 0.0
    evaluation: Seconds = 0.0
    checkpoint: Seconds | None = None
    checkpoint_size: PositiveBytes | None = None
    storage_rate: Rate | None = None
    checkpoint_interval: Seconds | None = None
    restart: Seconds = 0.0
    mean_time_between_failures: Seconds | None = None
    mean_time_between_failures_of_device: Literal["llama3"] | Seconds | None = None
    mean_time_between_interruptions: dict[Name, Seconds] | Seconds | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.storage_rate is not None and self.checkpoint is not None:
            raise ValueError("checkpoint and storage_rate both say what a checkpoint takes. Give one of them.")
        if self.checkpoint_size is not None and self.storage_rate is None:
            raise ValueError("checkpoint_size needs storage_rate, at which it is written. Add e.g. 20 GB/s.")
        if self.checkpoint_interval is not None and self.checkpoint is None and self.storage_rate is None:
            raise ValueError("checkpoint_interval needs checkpoint, the time to write one. Add e.g. checkpoint: 30 s.")
        for key in _BETWEEN:
            value = getattr(self, key)
            if value == 0 or (isinstance(value, dict) and 0 in value.values()):
                raise ValueError(f"{key} is 0. Write more than 0, or leave it out.")
        return self

    @property
    def checkpoint_s(self) -> float | None:
        """What writing a checkpoint takes, training standing still; None where there are none."""
        if self.storage_rate is None or self.checkpoint_size is None:
            return self.checkpoint
        return self.checkpoint_size / self.storage_rate

    @property
    def device_failures_s(self) -> float | None:
        """The time between two failures of one device; None where devices never fail."""
        given = self.mean_time_between_failures_of_device
        return LLAMA3_DEVICE_S if given == "llama3" else given

    def interruptions_per_h(self, offer: Offer) -> float:
        """Return how often a spot machine is taken away: as the question says of it, else as its row does."""
        between_s = self.mean_time_between_interruptions
        if isinstance(between_s, dict):
            between_s = next((one for pattern, one in between_s.items() if matches_offer(offer, [pattern])), None)
        return offer.interruptions_per_h if between_s is None else 3600 / between_s


class StorageSpec(Model):
    """Data kept for the time of the run."""

    size: Bytes
    usd_per_gb_month: Positive


class EgressSpec(Model):
    """Data carried out of the cloud, once."""

    size: Bytes
    usd_per_gb: Positive


class ElectricitySpec(Model):
    """What a kilowatt-hour costs, and the share of it that cooling adds: power usage effectiveness."""

    usd_per_kwh: Positive
    pue: Annotated[float, Field(ge=1, le=5)] = 1.0


class ReservedSpec(Model):
    """Machines paid for a committed time, used or not, at a discount; a part of it may be paid at the start."""

    discount: Share
    commitment: Seconds
    upfront: Annotated[float, Field(ge=0, le=1)] = 0.0


_ONE_RESERVED = BeforeValidator(
    lambda value: [value] if isinstance(value, dict) else value,
    json_schema_input_type=ReservedSpec | list[ReservedSpec] | None,
)


class NetworkTierSpec(Model):
    """A network that bought machines may have, and what cards and switch ports cost for each machine.

    ``bandwidth`` is that of one machine, all its cards together, as in price lists.
    """

    name: Name
    bandwidth: Rate
    usd_per_machine: Usd
    latency: Seconds | None = None


class NetworkFileSpec(Model):
    """A table of network tiers, all of which bought machines may have."""

    file: File


def _network_tag(value: object) -> str:
    """Tell a tier's name, a file, and a tier that stands in the question apart; the tags stand in no path."""
    return "<file>" if isinstance(value, dict) and "file" in value else tag(value)


NetworkOf = Annotated[
    Annotated[NetworkTierSpec, Tag("<mapping>")]
    | Annotated[NetworkFileSpec, Tag("<file>")]
    | Annotated[Name, Tag("<name>")],
    Discriminator(_network_tag),
]
_ONE_NETWORK = BeforeValidator(
    lambda value: [value] if isinstance(value, str | dict) else value,
    json_schema_input_type=NetworkOf | list[NetworkOf],
)


_INTENSITY = re.compile(r"(\d{1,5}(?:\.\d{1,6})?)\s*g(?:CO2e?)?\s*/\s*kWh", re.ASCII)


def _intensity(value: object) -> float | dict[str, float]:
    """Return grams of CO2 for a kilowatt-hour, of ``400 g/kWh``, or of a mapping with that of each region."""
    if isinstance(value, dict):
        return {str(region): float(str(_intensity(str(one)))) for region, one in value.items()}
    found = _INTENSITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"{value!r} is no carbon intensity. Write e.g. '400 g/kWh'.")
    return float(found[1])


_OF_INTENSITY = {"type": "string", "description": "carbon intensity, e.g. 400 g/kWh"}
_GramsPerKwh = Annotated[
    float | dict[Name, float],
    BeforeValidator(_intensity),
    WithJsonSchema({"anyOf": [_OF_INTENSITY, {"type": "object", "additionalProperties": _OF_INTENSITY}]}),
]
_MONEY = re.compile(r"(.*?\d\s*)([kM]?)([A-Za-z]{3})((?:/\w+)?)\s*", re.DOTALL)
_OF_MONEY = ("budget", "budget_rate", "capital")


def _in_dollars(text: str, rates: Mapping[str, float]) -> str:
    """Return an amount of money in dollars: of another currency at its rate, of dollars as it stands."""
    found = _MONEY.fullmatch(text)
    if found is None or found[3].upper() == "USD":
        return text
    number, scale, code, per = found.groups()
    if code.upper() not in rates:
        known = f"; rates holds {', '.join(rates)}" if rates else ""
        raise ValueError(
            f"{text!r}: no rate of {code.upper()} is given{known}. Add e.g. rates: {{{code.upper()}: 1.08}}, or --rate "
            f"{code.upper()}=1.08USD."
        )
    amount = parse(f"{number.strip()} {scale}USD", Dimension.MONEY) * rates[code.upper()]
    return f"{plain(amount)} USD{per}"


def _as_of(value: object) -> object:
    """Return a day, or ``any``."""
    if value is None or value == "any" or isinstance(value, date):
        return value
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        raise ValueError(f"{value!r} is no day. Write year-month-day, e.g. 2026-07-20, or any.") from None


def _budgets(value: object) -> tuple[list[str], list[str]]:
    """Return the amounts of a budget: in all, and for a time, ``5000 USD/day``."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not given or not all(isinstance(one, str) for one in given):
        raise ValueError(f"{value!r} is no budget. Write e.g. '50000 USD', '5000 USD/day', or a list of both.")
    return [one for one in given if "/" not in one], [one for one in given if "/" in one]


class RackSpec(Model):
    """What a rack of bought machines feeds, and how many racks there are."""

    power: Watts
    number: Count | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.power == 0:
            raise ValueError("a rack of 0 W feeds no machine. Write e.g. power: 40 kW.")
        return self


class JobSpec(Model):
    """One of several trainings that share the machines: how often a month, by when each must be done.

    Jobs with a share run on that part of every kind of machine; the others on all of them, one after the other.
    """

    name: Name
    dnn: DnnSpec
    runs_per_month: Positive
    deadline: Seconds | None = None
    share: Annotated[float, Field(gt=0, le=1)] = 1.0


class ProcureSpec(Model):
    """What may be had, under which limits, for which goal."""

    prices: Files = ["built-in"]
    objective: ObjectiveName = "cost"
    usd_per_hour_saved: Positive | None = None
    providers: Names | None = None
    regions: Names | None = None
    instances: Names | None = None
    devices: Names | None = None
    exclude: Names | None = None
    terms: Annotated[
        list[TermName], BeforeValidator(_as_list, json_schema_input_type=TermName | list[TermName]), Field(min_length=1)
    ] = ["on-demand"]
    most_types: Annotated[int, Field(ge=1, le=MOST_TYPES)] = 1
    machines: RangeOf | None = None
    most_devices: Count = 4096
    quotas: dict[Name, Annotated[int, Field(ge=0, strict=True)]] = {}
    budget: Annotated[
        Usd | None,
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string", "description": "amount of money, e.g. 50000 USD or 5000 USD/day"},
                    {"type": "array", "items": {"type": "string", "description": "amount of money"}},
                ]
            }
        ),
    ] = None
    budget_rate: UsdRate | None = None
    capital: Usd | None = None
    rates: dict[Name, Positive] = {}
    as_of: Annotated[date | Literal["any"] | None, BeforeValidator(_as_of, json_schema_input_type=str | None)] = None
    deadline: Seconds | None = None
    power: Watts | None = None
    racks: RackSpec | None = None
    carbon_intensity: _GramsPerKwh | None = None
    discounts: dict[Name, Share] = {}
    reserved: Annotated[list[ReservedSpec] | None, _ONE_RESERVED] = None
    utilisation: Annotated[float, Field(gt=0, le=1)] = 1.0
    networks: Annotated[list[NetworkOf], _ONE_NETWORK] = []
    custom_devices: list[DeviceSpec] = []
    run: Annotated[RunSpec, _EMPTY] = RunSpec()
    storage: StorageSpec | None = None
    egress: EgressSpec | None = None
    electricity: ElectricitySpec | None = None
    error: Share | None = None
    jobs: Annotated[list[JobSpec], Field(min_length=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _money(cls, given: Any) -> Any:
        """Take money of other currencies in dollars, and what of a budget is for a time apart.

        A budget and nothing else that says what is wanted asks for the fastest that it pays for.
        """
        if not isinstance(given, dict):
            return given
        found, rates = dict(given), {}
        if isinstance(given.get("rates"), dict) and all(
            isinstance(one, int | float) and not isinstance(one, bool) for one in given["rates"].values()
        ):
            rates = checked_rates({str(key): value for key, value in given["rates"].items()})
        if isinstance(found.get("budget"), str | list):
            whole, timed = _budgets(found.pop("budget"))
            if len(whole) > 1 or len(timed) > 1 or (timed and found.get("budget_rate") is not None):
                raise ValueError("there are two budgets of one kind. Give one in all and one for a time, at most.")
            found |= {"budget": whole[0]} if whole else {}
            found |= {"budget_rate": timed[0]} if timed else {}
        for key in _OF_MONEY:
            if isinstance(found.get(key), str):
                found[key] = _in_dollars(found[key], rates)
        return {**found, "objective": "time"} if is_budget_alone(found) else found

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.objective == "value_of_time") != (self.usd_per_hour_saved is not None):
            raise ValueError(
                "objective value_of_time and usd_per_hour_saved belong together. Give both, e.g. "
                "{objective: value_of_time, usd_per_hour_saved: 20}, or neither."
            )
        if 0 in (self.deadline, *(job.deadline for job in self.jobs or ())):
            raise ValueError("a deadline of 0 is kept by no training. Write more than 0, or leave it out.")
        if self.reserved is not None and "reserved" not in self.terms:
            raise ValueError(
                "the term reserved and the block reserved belong together. Write e.g. terms: [on-demand, reserved] "
                "and reserved: {discount: 0.3, commitment: 730 h}."
            )
        return self

    @property
    def num_machines(self) -> Range:
        """How many machines a fleet may have."""
        return read_range(None if self.machines is None else self.machines.model_dump())


class ProcurementSpec(Model):
    """A whole question of what to buy or rent."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="planner.procure/1")

    dnn: DnnSpec | None = None
    procure: Annotated[ProcureSpec, _EMPTY]
    calibration: Annotated[CalibrationOf, _EMPTY] = _CalibrationSpec()
    constraints: Annotated[ConstraintsSpec, _EMPTY] = ConstraintsSpec()
    families: Annotated[list[FamilyOf], Field(min_length=1)] | None = None
    compression: CompressionOptionSpec | None = None
    fix: Annotated[FixSpec, _EMPTY] = FixSpec()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.dnn is None) == (self.procure.jobs is None):
            raise ValueError("either dnn or procure.jobs says what is trained. Give one of them.")
        return self


# --- Network tiers that bought machines may have: what the ports, cables and switches of each machine cost
# A tier is one kind of network of one size: a larger cluster of the same rate needs more layers of switches, and so
# another tier. The table that ships and those of users are read by the same rules; docs/prices.md holds the columns.

BUILT_IN_TIERS = "the built-in network tiers"
REQUIRED = ("name", "gbit_per_s_per_port", "ports", "usd_per_port", "date", "source")
OPTIONAL = ("most", "latency_us", "power_w_per_port", "note")
_MOST_PORTS, _MOST_MACHINES = 1024, 2**20


@frozen
class NetworkTier:
    """A network between bought machines.

    Attributes
    ----------
    network_bytes_per_s, usd, power_w
        Of one machine: of all its ports, with their share of cables and switches.
    most
        Machines that it can join; None: as many as are wanted.
    date
        On which the price was right.
    """

    name: str
    network_bytes_per_s: float
    usd: float
    date: date
    source: str
    most: int | None = None
    latency_s: float = DEFAULT_LATENCY_S
    power_w: float = 0.0
    note: str = ""

    def joined(self, offer: Offer) -> Offer:
        """Return a bought machine with this tier: its rate and latency, and what it costs and draws in addition."""
        return replace(
            offer,
            name=f"{offer.name}/{self.name}",
            tier=self.name,
            network_bytes_per_s=self.network_bytes_per_s,
            latency_s=self.latency_s,
            purchase_usd=offer.purchase_usd + self.usd,
            power_w=None if offer.power_w is None else offer.power_w + self.power_w,
            most=min((number for number in (offer.most, self.most) if number is not None), default=None),
            date=min(offer.date, self.date),
        )


def read_networks(path: Path | None, *, today: date | None = None) -> tuple[NetworkTier, ...]:
    """Return the tiers of a table; of the one that ships where ``path`` is None.

    >>> [tier.name for tier in read_networks(None)][0]
    'infiniband-400g-direct'

    Raises
    ------
    SpecError
        With file, line, column, value and mend of everything that is wrong, in one pass.
    """
    text, file = (networks_text(), BUILT_IN_TIERS) if path is None else (text_of(path), str(path))
    latest = None if path is None else today  # what ships is not of the future, whatever a clock says
    faults: list[Fault] = []
    lines: dict[str, int] = {}
    tiers = []
    for row in read_rows(text, file, required=REQUIRED, optional=OPTIONAL, faults=faults):
        name = row.name("name")
        row.alone("name", name, fold(name), lines, "Remove one, or rename one.")
        for column in ("gbit_per_s_per_port", "ports", "usd_per_port"):
            row.needed(column)
        ports = row.count("ports", _MOST_PORTS) or 1
        latency_us = row.number("latency_us", is_zero=True)
        tiers.append(
            NetworkTier(
                name=name,
                network_bytes_per_s=ports * (row.number("gbit_per_s_per_port") or 1.0) * GBIT_BYTES,
                usd=ports * (row.number("usd_per_port", is_zero=True) or 0.0),
                date=row.day("date", latest),
                source=row.needed("source"),
                most=row.count("most", _MOST_MACHINES),
                latency_s=DEFAULT_LATENCY_S if latency_us is None else latency_us * US_S,
                power_w=ports * (row.number("power_w_per_port", is_zero=True) or 0.0),
                note=row.text("note"),
            )
        )
    refuse(faults)
    return tuple(tiers)


def _asked_tiers(asked: Sequence[NetworkOf], notes: Notes, today: date) -> list[NetworkTier]:
    """Return the tiers that a question names: of the table that ships, of files of the user's, and its own.

    Faults are noted: a file's with its own lines, a name that no tier of the table has, and a name that two tiers have.
    """
    tiers: list[NetworkTier] = []
    places: dict[str, int] = {}
    for index, entry in enumerate(asked):
        path = ("procure", "networks", index)
        meant: Sequence[NetworkTier]
        if isinstance(entry, NetworkTierSpec):
            own = NetworkTier(
                name=entry.name,
                network_bytes_per_s=entry.bandwidth,
                usd=entry.usd_per_machine,
                date=today,
                source="the question",
                latency_s=DEFAULT_LATENCY_S if entry.latency is None else entry.latency,
            )
            meant = [own]
        elif isinstance(entry, NetworkFileSpec):
            file = notes.source.folder / entry.file
            meant = notes.attempt((*path, "file"), lambda file=file: read_networks(file, today=today)) or ()  # type: ignore[misc]
        else:
            shipped = read_networks(None)
            meant = [tier for tier in shipped if fnmatchcase(fold(tier.name), fold(entry))]
            if not meant:
                names = [tier.name for tier in shipped]
                notes.fault(path, f"no network tier is called {entry!r}.", nearest(entry, names), entry)
        for tier in meant:
            if places.setdefault(fold(tier.name), index) != index:
                mend = f"Remove one, or rename one; the first is number {places[fold(tier.name)]}."
                notes.fault(path, f"two tiers are called {tier.name!r}.", mend)
            else:
                tiers.append(tier)
    return tiers


# --- What may be had of a price list: every offer on every term and network of a question, at the prices that hold
# These are made once, for the search and for the comparison of rent and purchase, so that both see the same prices.


def is_one_of(value: str, patterns: Sequence[str]) -> bool:
    """Whether a name is one of some patterns (``*`` stands for anything)."""
    return any(fnmatchcase(value.lower(), pattern.lower()) for pattern in patterns)


def matches_offer(offer: Offer, patterns: Sequence[str]) -> bool:
    """Whether an offer is meant: by its name, instance, provider and instance, device, or network tier."""
    names = [offer.name, offer.instance, f"{offer.provider}/{offer.instance}", offer.device]
    names += [] if offer.tier is None else [offer.tier]
    return any(is_one_of(name, patterns) for name in names)


def _reserved(listed: Offer, reserved: ReservedSpec, *, has_several: bool) -> Offer:
    """Return a machine that is had on demand, reserved; of several commitments the name says which it is."""
    name = f"{listed.name.removesuffix(f'/{Term.ON_DEMAND}')}/{Term.RESERVED}"
    usd_per_h, hours = listed.usd_per_h * (1 - reserved.discount), reserved.commitment / 3600
    return replace(
        listed,
        name=f"{name}/{hours:g} h" if has_several else name,
        term=Term.RESERVED,
        usd_per_h=usd_per_h,
        committed_s=reserved.commitment,
        upfront_usd=usd_per_h * hours * reserved.upfront or None,
    )


def priced_offers(asked: ProcureSpec, tiers: Sequence[NetworkTier], prices: PriceList) -> tuple[Offer, ...]:
    """Return all offers of a list, asked for or not, on every term and network.

    The discounts of their providers are taken off, quotas of an offer alone are what can be had of it, and spot
    machines are as often interrupted as the question says.
    """
    discounts = {name.lower(): share for name, share in asked.discounts.items()}
    offers: list[Offer] = []
    for listed in prices.offers:
        variants = [listed]
        if listed.is_bought and tiers and listed.network_bytes_per_s is None:
            variants = [tier.joined(listed) for tier in tiers]
        elif listed.term is Term.ON_DEMAND and asked.reserved is not None:
            variants += [_reserved(listed, one, has_several=len(asked.reserved) > 1) for one in asked.reserved]
        for offer in variants:
            quotas = [number for pattern, number in asked.quotas.items() if matches_offer(offer, [pattern])]
            offers.append(
                replace(
                    offer,
                    usd_per_h=offer.usd_per_h * (1 - discounts.get(offer.provider.lower(), 0.0)),
                    upfront_usd=None
                    if offer.upfront_usd is None
                    else offer.upfront_usd * (1 - discounts.get(offer.provider.lower(), 0.0)),
                    interruptions_per_h=asked.run.interruptions_per_h(offer) if offer.term is Term.SPOT else 0.0,
                    most=min([*quotas, *([] if offer.most is None else [offer.most])], default=None),
                )
            )
    return tuple(offers)


def refusals(asked: ProcureSpec, offer: Offer) -> Iterator[str]:
    """Yield why an offer may not be had."""
    if offer.term.value not in asked.terms:
        yield f"on other terms than {', '.join(asked.terms)}"
    for key, value in (("providers", offer.provider), ("regions", offer.region), ("devices", offer.device)):
        wanted = getattr(asked, key)
        if wanted is not None and not is_one_of(value, wanted):
            yield f"of other {key} than {', '.join(wanted)}"
    if asked.instances is not None and not matches_offer(offer, asked.instances):
        yield f"of other instances than {', '.join(asked.instances)}"
    if asked.exclude is not None and matches_offer(offer, asked.exclude):
        yield "excluded"
    if offer.most == 0:
        yield "with a quota of 0"
    needs_power = asked.power is not None or asked.objective == "energy"
    if asked.racks is not None and offer.is_bought and (offer.power_w or 0.0) > asked.racks.power:
        yield "of which one draws more than a rack feeds"
    needs_power |= asked.racks is not None and offer.is_bought
    if offer.power_w is None and (needs_power or (asked.electricity is not None and offer.is_bought)):
        yield "of unknown power"


def _check_names(asked: ProcureSpec, prices: PriceList, priced: Sequence[Offer], notes: Notes) -> None:
    """Refuse patterns that no offer of the list has: a name that was spelt wrong must not be taken for a wish."""

    def refuse_name(place: tuple[str, str | int], problem: str, word: str, names: Sequence[str], value: str) -> None:
        """Note the fault with the name that was meant, or of many names those that are most like it."""
        known = sorted(set(names))
        mend = nearest(word, known)
        if not mend.startswith("Did") and len(known) > _MOST_NAMES:
            like = sorted(known, key=lambda name: -SequenceMatcher(None, word.lower(), name.lower()).ratio())
            mend = f"The nearest of {len(known)}: {', '.join(like[:_MOST_NAMES])}."
        notes.fault(("procure", *place), problem, mend, value)

    providers = [offer.provider for offer in prices.offers]
    regions, devices = ([getattr(offer, name) for offer in prices.offers] for name in ("region", "device"))
    for key, names in (("providers", providers), ("regions", regions), ("devices", devices)):
        for index, pattern in enumerate(getattr(asked, key) or ()):
            if not any(is_one_of(name, [pattern]) for name in names):
                refuse_name((key, index), f"no offer has it: {pattern!r}.", pattern, names, pattern)
    instances = [offer.instance for offer in prices.offers] + [row.name for row in prices.unusable]
    instances += [offer.tier for offer in priced if offer.tier is not None]
    for key in ("instances", "exclude", "quotas"):
        for index, pattern in enumerate(getattr(asked, key) or ()):
            if not any(matches_offer(offer, [pattern]) for offer in (*prices.offers, *priced)):
                place = pattern if key == "quotas" else index
                refuse_name((key, place), f"no offer is meant by {pattern!r}.", pattern, instances, pattern)
    for name in asked.discounts:
        if name.lower() not in {provider.lower() for provider in providers}:
            refuse_name(("discounts", name), f"no provider is called {name!r}.", name, providers, "")


# --- What a training must say, and must not, where its machines are what is asked

_UNDER_PROCURE = {
    "deadline": "Write procure.deadline.",
    "machines": "Write procure.machines.",
    "devices": "Write procure.machines, or procure.most_devices.",
}


def _misplaced(source: Source) -> list[Fault]:
    """Return which blocks of a plan's question have no place here."""
    faults = []
    if source.data.get("cluster") is not None:
        problem = "the machines are what is asked here, so a cluster has no place."
        mend = "Leave cluster out; say under procure what may be had, e.g. instances, devices and machines."
        faults.append(source.fault(("cluster",), problem, mend))
    if source.data.get("objective") is not None:
        mend = "Write procure.objective: cost, time, energy or value_of_time."
        faults.append(source.fault(("objective",), "of a purchase it stands under procure.", mend))
    constraints = source.data.get("constraints")
    for key, mend in _UNDER_PROCURE.items():
        if isinstance(constraints, dict) and constraints.get(key) is not None:
            faults.append(source.fault(("constraints", key), "of a purchase it is asked under procure.", mend))
    return faults


def _training_faults(spec: ProcurementSpec, source: Source) -> Iterator[Fault]:
    """Yield what keeps a training from being asked of any number of any machines, and what contradicts between jobs."""
    jobs = spec.procure.jobs or []
    trainings: list[tuple[tuple[str | int, ...], DnnSpec]] = [] if spec.dnn is None else [(("dnn",), spec.dnn)]
    trainings += [(("procure", "jobs", index, "dnn"), job.dnn) for index, job in enumerate(jobs)]
    for path, dnn in trainings:
        if dnn.global_batch is None and dnn.max_global_batch is None:
            key = "global_batch" if dnn.batch_per_device is None else "batch_per_device"
            problem = "the number of devices is searched, so the batch of all of them together must be given."
            mend = "Give dnn.global_batch, e.g. 512" + (", instead." if dnn.batch_per_device else ".")
            yield source.fault((*path, key), problem, mend, dnn.batch_per_device or "")
        is_measured = dnn.profile or dnn.trace or any(layer.forward is not None for layer in dnn.layers or ())
        if dnn.profile_device is None and is_measured:
            problem = "the network's seconds were measured, and it is not said on which device."
            mend = "Give dnn.profile_device, e.g. v100; else they would be taken for those of every device."
            yield source.fault((*path, "profile_device"), problem, mend)
    total = sum(job.share for job in jobs if job.share < 1)
    if total > 1 + 1e-9:
        problem = f"the jobs that have a share of the machines to themselves take {total:.0%} of them."
        yield source.fault(("procure", "jobs"), problem, "Lower a share.")
    for index, job in enumerate(jobs):
        if job.name in {before.name for before in jobs[:index]}:
            problem = f"two jobs are called {job.name!r}."
            yield source.fault(("procure", "jobs", index, "name"), problem, "Give each a name of its own.", job.name)
    if jobs and spec.procure.deadline is not None:
        problem = "of several jobs each has a deadline of its own."
        yield source.fault(("procure", "deadline"), problem, "Write it as deadline of the jobs that have one.")


# --- All of it together

BUILT_IN = "built-in"
FROM_MACHINES = ("dtype", "optimizer")  # of a network: taken by the machines, where the question leaves them open
SCHEMA = "planner.procurement/1"
_ABOUT_MACHINES = ("procure", "cluster", "objective")
_FASTEST = "objective: time, since a budget alone is given; objective: cost asks for the cheapest within it"
_MOST_NAMES = 5  # that are listed where one was spelt wrong


@frozen
class Job:
    """One training: its question without machines, how often a month, by when, on which part of the machines.

    ``runs_per_month`` is 0 where there is one run and no month.
    """

    name: str
    question: Mapping[str, Any]
    runs_per_month: float = 0.0
    deadline_s: float = inf
    share: float = 1.0


@frozen
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


def load_procurement(question: str | Path | Mapping[str, object], *, today: date) -> Procurement:
    """Return the question that a spec file or a mapping of the same keys asks.

    Raises
    ------
    SpecError
        With every fault of the text in one pass; of a price list with its own lines.
    InfeasibleError
        If no offer of the price list may be had.
    """
    source = source_of(question)
    if source.data.get("schema") == SCHEMA:
        source = replace(source, data=source.data.get("problem"), positions={})
    if not isinstance(source.data, dict) or "procure" not in source.data:
        problem = "there is no block procure, which says what may be bought or rented."
        mend = "Add e.g. procure: {deadline: 24 h, budget: 500 USD}."
        raise source.error(("procure",), problem, mend)
    if source.data["procure"] is None:  # the block is there, and everything in it left as it is
        source = replace(source, data={**source.data, "procure": {}})
    source = with_network_files(source)
    misplaced = _misplaced(source)
    try:
        spec = ProcurementSpec.model_validate(source.data)
    except ValidationError as error:
        places = {fault.field for fault in misplaced}
        others = [fault for fault in faults_of(error, source, ProcurementSpec) if fault.field not in places]
        raise SpecError.of([*misplaced, *others]) from None
    if misplaced:
        raise SpecError.of(misplaced)
    return _build(spec, source, today)


def _build(spec: ProcurementSpec, source: Source, today: date) -> Procurement:
    """Return the question of a checked spec."""
    asked, notes = spec.procure, Notes(source)
    notes.faults += _training_faults(spec, source)
    tiers = _asked_tiers(asked.networks, notes, today)
    custom = [device.name for device in asked.custom_devices]
    lists = [
        notes.attempt(
            ("procure", "prices", index),
            lambda name=name: read_price_list(  # type: ignore[misc]
                None if name == BUILT_IN else source.folder / name,
                today=today,
                custom_devices=custom,
                rates={code.upper(): rate for code, rate in asked.rates.items()},
            ),
        )
        for index, name in enumerate(asked.prices)
    ]
    if None in lists:
        raise SpecError.of(notes.faults)
    prices = merged(lists)
    current, left_out = merged([in_force(one, asked.as_of) for one in lists if one is not None]), dict[str, int]()
    if aged := len(prices.offers) - len(current.offers):
        when = "the newest of its list" if asked.as_of is None else f"{asked.as_of}, or after it"
        left_out[f"priced more than a year before {when} (procure.as_of: any keeps them)"] = aged
    priced = priced_offers(asked, tiers, current)
    _check_names(asked, prices, [*priced, *priced_offers(asked, tiers, prices)], notes)
    if notes.faults:
        raise SpecError.of(notes.faults)
    offers: list[Offer] = []
    is_reserved = any(offer.term is Term.RESERVED for offer in (*priced, *prices.offers))  # out of date, too
    if "reserved" in asked.terms and not asked.reserved and not is_reserved:
        problem = "the term reserved and the block reserved belong together: no row of a price list is reserved."
        notes.fault(("procure",), problem, "Write e.g. reserved: {discount: 0.3, commitment: 8760 h}.")
        raise SpecError.of(notes.faults)
    for offer in priced:
        if (why := next(refusals(asked, offer), None)) is None:
            offers.append(offer)
        else:
            left_out[why] = left_out.get(why, 0) + 1
    jobs = _jobs(spec, source)
    resolved = copy.deepcopy(source.data)
    if asked.run.storage_rate is not None and asked.run.checkpoint_size is None:
        asked, resolved = _with_checkpoints(asked, resolved, source, jobs, priced)
    if not offers:
        reasons = "; ".join(f"{number} {why}" for why, number in left_out.items())
        number = len(prices.offers)
        raise InfeasibleError(f"of {number} offer{'s' * (number != 1)} none may be had: {reasons}.")
    # The machines that a tier can join are one more quota of all offers that have it.
    joined = {f"*/{Term.BOUGHT}/{escape(tier.name)}": tier.most for tier in tiers if tier.most is not None}
    defaults = "families: hybrid for transformers, all_reduce for other networks; name others under families"
    return Procurement(
        asked=asked.model_copy(update={"quotas": {**joined, **asked.quotas}}),
        source=source,
        jobs=jobs,
        offers=tuple(offers),
        prices=prices,
        priced=priced,
        left_out=left_out,
        families=None if spec.families is None else tuple(spec.families),
        today=today,
        resolved=resolved,
        assumptions=(
            *((_FASTEST,) if is_budget_alone(source.data["procure"]) else ()),
            *((defaults,) if spec.families is None else ()),
        ),
    )


# Of a parameter: its number in 16 bits, and in 32 bits itself and two moments of Adam, as Megatron-Core saves them.
_CHECKPOINT_BYTES = 2 + 4 + 4 + 4


def _with_checkpoints(
    asked: ProcureSpec, resolved: dict[str, Any], source: Source, jobs: Sequence[Job], offers: Sequence[Offer]
) -> tuple[ProcureSpec, dict[str, Any]]:
    """Return a question with the bytes of a checkpoint, of the largest network that is trained; and as plain data."""
    offer = offers[0]
    device = next((one for one in resolved["procure"].get("custom_devices") or () if one["name"] == offer.device), None)
    cluster = {"machines": [{"count": 1, "device": device or offer.device, "devices": 1}]}
    most = 0
    for job in jobs:
        question = {key: part for key, part in job.question.items() if key in ("dnn", "calibration")}
        try:
            problem = problem_of(replace(source, data={**question, "cluster": cluster}))
        except SpecError as error:
            raise of_job(source, asked, job.name, error) from None
        most = max(most, problem.dnn.num_trainable)
    size = f"{most * _CHECKPOINT_BYTES} B"
    run = asked.run.model_copy(update={"checkpoint_size": float(most * _CHECKPOINT_BYTES)})
    block = {**resolved["procure"], "run": {**(resolved["procure"].get("run") or {}), "checkpoint_size": size}}
    return asked.model_copy(update={"run": run}), {**resolved, "procure": block}


def of_job(source: Source, asked: ProcureSpec, name: str, error: SpecError) -> SpecError:
    """Return an error of the question of one training; of one of several jobs at the place where it is written."""
    index = next((index for index, job in enumerate(asked.jobs or ()) if job.name == name), None)
    if index is None:
        return error
    faults = []
    for fault in error.faults:
        block, *keys = fault.field.split(".")
        path: list[str | int] = ["procure", "jobs", index, block, *keys]
        problem = f"of the job {name!r}, {fault.problem}"
        faults.append(source.fault(path, problem, fault.mend, fault.value) if block == "dnn" else fault)
    return SpecError.of(faults) if faults else error


def _jobs(spec: ProcurementSpec, source: Source) -> tuple[Job, ...]:
    """Return what is trained, as questions that lack their machines."""
    common = {key: value for key, value in source.data.items() if key not in _ABOUT_MACHINES and value is not None}
    if spec.procure.jobs is None:
        return (Job(name="training", question=common, deadline_s=_or_never(spec.procure.deadline)),)
    return tuple(
        Job(
            name=job.name,
            question={**common, "dnn": dict(plain["dnn"])},
            runs_per_month=job.runs_per_month,
            deadline_s=_or_never(job.deadline),
            share=job.share,
        )
        for job, plain in zip(spec.procure.jobs, source.data["procure"]["jobs"], strict=True)
    )


def _or_never(deadline_s: float | None) -> float:
    """Return a deadline, infinite where there is none."""
    return inf if deadline_s is None else deadline_s
