"""What may be bought or rented: one kind of machine at one price, and the list of them.

An offer is read once (:mod:`planner.procurement.price_list`) and trusted from then on. A row of a list that cannot be
used is kept with the reason why, so that nothing is dropped in silence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum

__all__ = ["Offer", "PriceList", "Term", "Unusable"]


class Term(StrEnum):
    """On which terms a machine is had."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"  # may be taken away at any time
    RESERVED = "reserved"  # paid for a committed time, used or not
    BOUGHT = "bought"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One kind of machine on one term.

    Attributes
    ----------
    name
        Unique: ``provider/instance/region/term``, and ``/network`` where a tier was chosen.
    device
        A name of the device table, or of a device that the question defines.
    inside
        A name of the table of links: between the devices of one machine; None where there is one device.
    network_bytes_per_s
        Of one machine, all cards together; None: unknown, so one machine of it trains alone.
    usd_per_h
        Rent of one machine; 0 for a bought one.
    billing_s, least_billed_s
        Time is billed in whole multiples of the first, and at least the second.
    committed_s
        Of a reserved machine: what is paid for in any case.
    purchase_usd, useful_life_s, hosting_usd_per_month
        Of a bought machine, network card and switch port included.
    power_w
        Of one machine under load: devices and host; None where unknown.
    interruptions_per_h
        Of one machine, how often it is taken away; 0 unless given (spot).
    most
        Machines that can be had; None: not limited by the list.
    date
        On which the price was right.
    tier
        The network tier that a bought machine has; None: the network that its row names, or none.
    """

    name: str
    provider: str
    instance: str
    region: str
    term: Term
    device: str
    devices_per_machine: int
    date: date
    source: str
    usd_per_h: float = 0.0
    billing_s: float = 1.0
    least_billed_s: float = 0.0
    committed_s: float = 0.0
    purchase_usd: float = 0.0
    useful_life_s: float = float("inf")
    hosting_usd_per_month: float = 0.0
    power_w: float | None = None
    inside: str | None = None
    network_bytes_per_s: float | None = None
    latency_s: float = 20e-6
    memory_bytes: float | None = None
    vcpus: int | None = None
    interruptions_per_h: float = 0.0
    most: int | None = None
    note: str = ""
    tier: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusable:
    """A row of a list that cannot be planned with, and why."""

    line: int
    name: str
    reason: str
    row: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """The offers of one list or of several, and the rows that are none."""

    offers: tuple[Offer, ...]
    unusable: tuple[Unusable, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def oldest(self) -> date:
        """The date of the oldest price."""
        return min(offer.date for offer in self.offers)
