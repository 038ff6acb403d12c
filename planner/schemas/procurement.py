"""Schemas of the answer to what to buy or rent."""

from typing import Any, Literal

from pydantic import Field

from planner.schemas.answers import ObjectiveDocument, PlanDocument
from planner.schemas.base import Document

__all__ = ["ProcurementDocument"]


class FleetRowDocument(Document):
    """So many machines of an offer, at the price after discounts; ``useful_life_s`` is null where it is endless."""

    count: int
    name: str
    provider: str
    instance: str
    region: str
    term: Literal["on-demand", "spot", "reserved", "bought"]
    device: str
    devices_per_machine: int
    date: str
    source: str
    usd_per_h: float
    billing_s: float
    least_billed_s: float
    committed_s: float
    purchase_usd: float
    useful_life_s: float | None
    hosting_usd_per_month: float
    power_w: float | None = None
    inside: str | None = None
    network_bytes_per_s: float | None = None
    latency_s: float
    memory_bytes: float | None = None
    vcpus: int | None = None
    interruptions_per_h: float
    most: int | None = None
    note: str
    tier: str | None = None


class FleetErrorDocument(Document):
    """Measured / predicted - 1 of such plans, its least and its largest."""

    low: float
    high: float


class FleetDocument(Document):
    """A fleet's run: ``breakdown_s`` sums to ``wall_time_s``, ``breakdown_usd`` to ``cost_usd``.

    Where jobs share the machines, of a month. ``spent_usd`` holds the whole purchase instead of the run's share in it.
    """

    fleet: list[FleetRowDocument]
    objective: float
    cost_usd: float
    spent_usd: float
    breakdown_usd: dict[str, float]
    wall_time_s: float
    breakdown_s: dict[str, float]
    training_s: dict[str, float]
    job_wall_s: dict[str, float]
    energy_j: float | None
    power_w: float | None
    capital_usd: float
    error: FleetErrorDocument | None


class ChosenFleetDocument(FleetDocument):
    """The fleet that was chosen, with the plan of each job."""

    plans: dict[str, PlanDocument]


class TradeoffPlanDocument(Document):
    """How a job trains on a fleet that is not the answer."""

    status: Literal["optimal", "feasible"]
    objective: float
    bound: float
    family: str
    configuration: dict[str, Any]


class OtherFleetDocument(FleetDocument):
    """The best fleet of another device; ``words`` says how sure that is; files of old have no ``plans``."""

    words: str
    plans: dict[str, TradeoffPlanDocument] = {}


class TradeoffDocument(FleetDocument):
    """A fleet that none beats in time and money; ``is_tie``: closer to the one before than the known error."""

    is_tie: bool
    plans: dict[str, TradeoffPlanDocument]


class TradeoffsDocument(Document):
    """All fleets that none beats, fastest first; ``gap``: by what factor less 1 one that is left might beat them."""

    status: Literal["optimal", "feasible"]
    gap: float | None
    points: list[TradeoffDocument]


class FleetCertificateDocument(Document):
    """What was proven, over what; bounds by the most types of machines in a fleet, null where there is none."""

    bounds_by_types: dict[str, float | None]
    domain: list[str]
    num_offers: int
    num_markets: int
    num_planned: int


class MonthDocument(Document):
    """What a machine costs in a month of so many hours of use."""

    hours: float
    rent_usd: float
    buy_usd: float


class BreakEvenDocument(Document):
    """From how many hours of use a month on buying costs less; null: never."""

    rented: str
    bought: str
    hours_per_month: float | None
    rows: list[MonthDocument]
    words: str = ""


class WhatIfDocument(Document):
    """The best fleet after a change, null where there is none."""

    change: str
    fleet: list[FleetRowDocument] | None
    objective: float | None
    changes_decision: bool
    words: str


class ProcurementDocument(Document):
    """What to buy or rent, its proof, and the question; ``objective`` is in dollars, seconds or joules by its name.

    ``margin``: by what share training may take longer until the deadline is missed; null without one. ``stretch``: what
    training was taken to take over what is predicted; 1 but with ``--robust``.
    """

    schema_: Literal["planner.procurement/1"] = Field(alias="schema")
    status: Literal["optimal", "feasible"]
    problem: dict[str, Any]
    objective: ObjectiveDocument
    choice: ChosenFleetDocument
    certificate: FleetCertificateDocument
    margin: float | None
    stretch: float
    explanation: list[str]
    alternatives: list[OtherFleetDocument]
    break_even: list[BreakEvenDocument]
    pareto: TradeoffsDocument | None
    what_if: list[WhatIfDocument]
    assumptions: list[str]
    warnings: list[str]
    not_modelled: list[str]
    prices: dict[str, Any]
