"""The block ``dnn.fine_tuning`` of a spec: adapters of a transformer, and what cannot have any."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from planner.cost import Profile
from planner.dnn import Dnn
from planner.fine_tuning import MOST_RANK, SYNONYMS, TARGETS, FineTuning, FineTuningMethod
from planner.question.source import nearest
from planner.question.values import Count, Model, Positive
from planner.trained import Trained
from planner.zoo.transformers import dnn_of

_RANK, _ALPHA = 16, 32.0  # of Megatron-Bridge's examples (docs/training/peft.md)


def _target(name: str) -> str:
    """Return a matrix by its name here; names of Hugging Face's modules and of Megatron's are known."""
    found = SYNONYMS.get(name, name)
    if found not in TARGETS:
        raise ValueError(f"{name!r} is no matrix that an adapter stands beside. {nearest(name, [*TARGETS, *SYNONYMS])}")
    return found


def _short(value: object) -> object:
    """Read a bare method as the block that says it: ``fine_tuning: lora``."""
    return {"method": value} if isinstance(value, str) else value


class FineTuningSpec(Model):
    """Adapters that are trained in place of the network's own parameters."""

    method: FineTuningMethod
    rank: Annotated[Count, Field(le=MOST_RANK)] | None = None
    alpha: Positive | None = None
    targets: Annotated[list[Annotated[str, AfterValidator(_target)]], Field(min_length=1)] | None = None


FineTuningOf = Annotated[
    FineTuningSpec, BeforeValidator(_short, json_schema_input_type=FineTuningMethod | FineTuningSpec)
]


def adapted(spec: FineTuningSpec, dnn: Dnn, profile: Profile | None) -> tuple[Dnn, dict[str, Any]]:
    """Return the network with adapters, and the block that says them whole.

    Raises
    ------
    ValueError
        For a network that is no transformer, whose seconds were measured, or that lacks a matrix.
    """
    network = dnn.transformer
    if network is None or profile is not None:
        why = "its seconds were measured, and those of adapters are not known"
        if network is None:
            why = "it is not known as a transformer, whose linear layers adapters are counted beside"
        raise ValueError(f"{dnn.name} cannot be trained by adapters: {why}. Leave it out; or name a transformer.")
    usual = [name for name in ("qkv", "output", "gate_up", "up", "down") if name in network.adapted]
    usual = [name for name in usual if name != "up" or "gate_up" not in usual]
    targets = spec.targets or usual
    if not network.is_gated:  # Megatron's name of the first matrix of a feed-forward part, gated or not
        targets = ["up" if name == "gate_up" else name for name in targets]
    tuning = FineTuning(
        method=spec.method,
        rank=spec.rank or _RANK,
        alpha=spec.alpha or _ALPHA,
        targets=tuple(dict.fromkeys(targets)),
    )
    block: dict[str, Any] = {"method": tuning.method, "rank": tuning.rank, "alpha": tuning.alpha}
    block["targets"] = list(tuning.targets)
    found = dnn_of(
        replace(network, trained=Trained(adapters=tuning)),
        dnn.name,
        source=dnn.source,
        dataset_samples=dnn.dataset_samples,
    )
    return found, block
