"""The block ``procure`` of a spec: what may be had, under which limits, and what a run needs beside its training."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from planner.family_names import FamilyName
from planner.procurement.offer import Term
from planner.spec.calibration_block import CalibrationSpec as _CalibrationSpec
from planner.spec.machines import DeviceSpec
from planner.spec.question import (
    CalibrationOf,
    CompressionOptionSpec,
    ConstraintsSpec,
    DnnSpec,
    FixSpec,
    RangeOf,
)
from planner.spec.values import Bytes, Count, File, Model, Name, Positive, Rate, Seconds, Share, Usd, Watts, tag

__all__ = ["JobSpec", "NetworkFileSpec", "NetworkOf", "NetworkTierSpec", "ProcureSpec", "ProcurementSpec", "RunSpec"]

MOST_TYPES = 3
_EMPTY = BeforeValidator(lambda value: {} if value is None else value)
TermName = Literal["on-demand", "spot", "reserved", "bought"]
ObjectiveName = Literal["cost", "time", "energy", "value_of_time"]


def _names(value: object) -> object:
    """Read one name as a list of one."""
    return [value] if isinstance(value, str) else value


Files = Annotated[list[File], BeforeValidator(_names, json_schema_input_type=File | list[File]), Field(min_length=1)]
Names = Annotated[list[Name], BeforeValidator(_names, json_schema_input_type=Name | list[Name]), Field(min_length=1)]


class RunSpec(Model):
    """What a run takes beside its training.

    ``mean_time_between_failures`` is of one machine, for whatever reason but the interruptions of spot machines.
    """

    start_up: Seconds = 0.0
    evaluation: Seconds = 0.0
    checkpoint: Seconds | None = None
    checkpoint_interval: Seconds | None = None
    restart: Seconds = 0.0
    mean_time_between_failures: Seconds | None = None
    mean_time_between_interruptions: Seconds | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.checkpoint_interval is not None and self.checkpoint is None:
            raise ValueError("checkpoint_interval needs checkpoint, the time to write one. Add e.g. checkpoint: 30 s.")
        for key in ("checkpoint_interval", "mean_time_between_failures", "mean_time_between_interruptions"):
            if getattr(self, key) == 0:
                raise ValueError(f"{key} is 0. Write more than 0, or leave it out.")
        return self


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
    """Machines paid for a committed time, used or not, at a discount."""

    discount: Share
    commitment: Seconds


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


def _networks(value: object) -> object:
    """Read one network as a list of one."""
    return [value] if isinstance(value, str | dict) else value


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
        list[TermName], BeforeValidator(_names, json_schema_input_type=TermName | list[TermName]), Field(min_length=1)
    ] = ["on-demand"]
    most_types: Annotated[int, Field(ge=1, le=MOST_TYPES)] = 1
    machines: RangeOf | None = None
    most_devices: Count = 4096
    quotas: dict[Name, Annotated[int, Field(ge=0, strict=True)]] = {}
    budget: Usd | None = None
    capital: Usd | None = None
    deadline: Seconds | None = None
    power: Watts | None = None
    discounts: dict[Name, Share] = {}
    reserved: ReservedSpec | None = None
    networks: Annotated[
        list[NetworkOf], BeforeValidator(_networks, json_schema_input_type=NetworkOf | list[NetworkOf])
    ] = []
    custom_devices: list[DeviceSpec] = []
    run: Annotated[RunSpec, _EMPTY] = RunSpec()
    storage: StorageSpec | None = None
    egress: EgressSpec | None = None
    electricity: ElectricitySpec | None = None
    error: Share | None = None
    jobs: Annotated[list[JobSpec], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.objective == "value_of_time") != (self.usd_per_hour_saved is not None):
            raise ValueError(
                "objective value_of_time and usd_per_hour_saved belong together. Give both, e.g. "
                "{objective: value_of_time, usd_per_hour_saved: 20}, or neither."
            )
        if ("reserved" in self.terms) != (self.reserved is not None):
            raise ValueError(
                "the term reserved and the block reserved belong together. Write e.g. terms: [on-demand, reserved] "
                "and reserved: {discount: 0.3, commitment: 730 h}."
            )
        return self

    @property
    def allowed_terms(self) -> frozenset[Term]:
        """The terms, as the list of prices has them."""
        return frozenset(Term(name) for name in self.terms)


class ProcurementSpec(Model):
    """A whole question of what to buy or rent."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="planner.procure/1")

    dnn: DnnSpec | None = None
    procure: Annotated[ProcureSpec, _EMPTY]
    calibration: Annotated[CalibrationOf, _EMPTY] = _CalibrationSpec()
    constraints: Annotated[ConstraintsSpec, _EMPTY] = ConstraintsSpec()
    families: Annotated[list[FamilyName], Field(min_length=1)] | None = None
    compression: CompressionOptionSpec | None = None
    fix: Annotated[FixSpec, _EMPTY] = FixSpec()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.dnn is None) == (self.procure.jobs is None):
            raise ValueError("either dnn or procure.jobs says what is trained. Give one of them.")
        return self
