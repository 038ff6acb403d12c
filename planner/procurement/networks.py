"""Network tiers that bought machines may have: what the ports, cables and switches of each machine cost.

A tier is one kind of network of one size: a larger cluster of the same rate needs more layers of switches, and so
another tier. The table that ships and those of users are read by the same rules; docs/prices.md holds the columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path

from planner.data.prices import networks_text
from planner.errors import Fault
from planner.names import fold
from planner.procurement.csv_table import Row, read_rows, refuse, text_of
from planner.procurement.offer import Offer
from planner.procurement.spec import NetworkFileSpec, NetworkOf, NetworkTierSpec
from planner.spec.source import Notes, Source, nearest

__all__ = ["BUILT_IN", "OPTIONAL", "REQUIRED", "NetworkTier", "asked_tiers", "read_networks", "with_tier"]

BUILT_IN = "the built-in network tiers"
REQUIRED = ("name", "gbit_per_s_per_port", "ports", "usd_per_port", "date", "source")
OPTIONAL = ("most", "latency_us", "power_w_per_port", "note")
_GBIT, _US, _LATENCY_S = 1e9 / 8, 1e-6, 20e-6
_MOST_PORTS, _MOST_MACHINES = 1024, 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
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
    latency_s: float = _LATENCY_S
    power_w: float = 0.0
    note: str = ""


def read_networks(path: Path | None, *, today: date | None = None) -> tuple[NetworkTier, ...]:
    """Return the tiers of a table; of the one that ships where ``path`` is None.

    >>> [tier.name for tier in read_networks(None)][0]
    'infiniband-400g-direct'

    Raises
    ------
    SpecError
        With file, line, column, value and mend of everything that is wrong, in one pass.
    """
    text, file = (networks_text(), BUILT_IN) if path is None else (text_of(path), str(path))
    faults: list[Fault] = []
    rows = read_rows(text, file, required=REQUIRED, optional=OPTIONAL, faults=faults)
    lines: dict[str, int] = {}
    latest = None if path is None else today  # what ships is not of the future, whatever a clock says
    tiers = [_tier(row, latest, lines) for row in rows]
    refuse(faults)
    return tuple(tiers)


def asked_tiers(asked: Sequence[NetworkOf], source: Source, notes: Notes, today: date) -> tuple[NetworkTier, ...]:
    """Return the tiers that a question names: of the table that ships, of files of the user's, and its own.

    Faults are noted: a file's with its own lines, a name that no tier of the table has, and a name that two tiers have.
    """
    found: list[NetworkTier] = []
    places: dict[str, int] = {}
    for index, one in enumerate(asked):
        path = ("procure", "networks", index)
        for tier in _tiers_of(one, path, source, notes, today):
            if places.setdefault(fold(tier.name), index) != index:
                problem = f"two tiers are called {tier.name!r}."
                notes.fault(path, problem, f"Remove one, or rename one; the first is number {places[fold(tier.name)]}.")
            else:
                found.append(tier)
    return tuple(found)


def _tiers_of(
    one: NetworkOf, path: tuple[str | int, ...], source: Source, notes: Notes, today: date
) -> Sequence[NetworkTier]:
    """Return the tiers that one entry of a question means."""
    if isinstance(one, NetworkTierSpec):
        latency_s = _LATENCY_S if one.latency is None else one.latency
        own = NetworkTier(
            name=one.name,
            network_bytes_per_s=one.bandwidth,
            usd=one.usd_per_machine,
            date=today,
            source="the question",
            latency_s=latency_s,
        )
        return (own,)
    if isinstance(one, NetworkFileSpec):
        file = source.folder / one.file
        return notes.attempt((*path, "file"), lambda: read_networks(file, today=today)) or ()
    tiers = read_networks(None)
    meant = [tier for tier in tiers if fnmatchcase(fold(tier.name), fold(one))]
    if not meant:
        notes.fault(path, f"no network tier is called {one!r}.", nearest(one, [tier.name for tier in tiers]), one)
    return meant


def with_tier(offer: Offer, tier: NetworkTier) -> Offer:
    """Return a bought machine with a network tier: its rate and latency, and what it costs and draws in addition."""
    most = [number for number in (offer.most, tier.most) if number is not None]
    return replace(
        offer,
        name=f"{offer.name}/{tier.name}",
        tier=tier.name,
        network_bytes_per_s=tier.network_bytes_per_s,
        latency_s=tier.latency_s,
        purchase_usd=offer.purchase_usd + tier.usd,
        power_w=None if offer.power_w is None else offer.power_w + tier.power_w,
        most=min(most, default=None),
        date=min(offer.date, tier.date),
    )


def _tier(row: Row, today: date | None, lines: dict[str, int]) -> NetworkTier:
    """Return the tier of a row; where a cell is a fault, with whatever goes on."""
    name = row.name("name")
    first = lines.setdefault(fold(name), row.line)
    if first != row.line:
        row.fault("name", f"{name} stands in line {first}, too.", "Remove one, or rename one.")
    for column in ("gbit_per_s_per_port", "ports", "usd_per_port"):
        row.needed(column)
    ports = row.count("ports", _MOST_PORTS) or 1
    latency_us = row.number("latency_us", is_zero=True)
    return NetworkTier(
        name=name,
        network_bytes_per_s=ports * (row.number("gbit_per_s_per_port") or 1.0) * _GBIT,
        usd=ports * (row.number("usd_per_port", is_zero=True) or 0.0),
        date=row.day("date", today),
        source=row.needed("source"),
        most=row.count("most", _MOST_MACHINES),
        latency_s=_LATENCY_S if latency_us is None else latency_us * _US,
        power_w=ports * (row.number("power_w_per_port", is_zero=True) or 0.0),
        note=row.text("note"),
    )
