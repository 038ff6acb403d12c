"""What a spec may say of a transformer beside its sizes: numerics, adapters, and parts that are not trained.

``rotary``, ``numerics``, and ``routing`` of its experts: what is left out has the defaults of :mod:`planner.numerics`,
which checks the figures. ``fine_tuning``: adapters. ``frozen``: parts that are not trained. Both refuse networks that
cannot have any.
"""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from planner.cost import Profile
from planner.dnn import Dnn
from planner.numerics import Activation, AuxiliaryLoss, RotaryScalingKind, RouterBias, Score
from planner.question.source import nearest
from planner.question.values import Count, Model, Positive
from planner.trained import EMBEDDING, FROZEN_PARTS, MOST_RANK, SYNONYMS, TARGETS, FineTuning, FineTuningMethod, Trained
from planner.zoo.transformers import dnn_of

Weight = Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False)]
Epsilon = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
_RANK, _ALPHA = 16, 32.0  # of Megatron-Bridge's examples (docs/training/peft.md)


def _target(name: str) -> str:
    """Return a matrix by its name here; names of Hugging Face's modules and of Megatron's are known."""
    found = SYNONYMS.get(name, name)
    if found not in TARGETS:
        raise ValueError(f"{name!r} is no matrix that an adapter stands beside. {nearest(name, [*TARGETS, *SYNONYMS])}")
    return found


def _tuning_block(value: object) -> object:
    """Read a bare method as the block that says it: ``fine_tuning: lora``."""
    return {"method": value} if isinstance(value, str) else value


class FineTuningSpec(Model):
    """Adapters that are trained in place of the network's own parameters."""

    method: FineTuningMethod
    rank: Annotated[Count, Field(le=MOST_RANK)] | None = None
    alpha: Positive | None = None
    targets: Annotated[list[Annotated[str, AfterValidator(_target)]], Field(min_length=1)] | None = None


FineTuningOf = Annotated[
    FineTuningSpec, BeforeValidator(_tuning_block, json_schema_input_type=FineTuningMethod | FineTuningSpec)
]


def adapted(spec: FineTuningSpec, dnn: Dnn, profile: Profile | None) -> tuple[Dnn, dict[str, object]]:
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
        method=spec.method, rank=spec.rank or _RANK, alpha=spec.alpha or _ALPHA, targets=tuple(dict.fromkeys(targets))
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


def _frozen_part(name: str) -> str:
    """Return a part that can be frozen."""
    if name not in FROZEN_PARTS:
        raise ValueError(f"{name!r} is no part that can be frozen. {nearest(name, FROZEN_PARTS)}")
    return name


_FrozenPart = Annotated[str, AfterValidator(_frozen_part)]


def _frozen_block(value: object) -> object:
    """Read parts, or a number of layers, as the block that says them: ``frozen: [embedding]``, ``frozen: 20``."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return {"layers": value}
    return {"parts": [value] if isinstance(value, str) else value} if isinstance(value, str | list) else value


class FrozenSpec(Model):
    """Parts of the network that are not trained."""

    layers: Count | None = None
    parts: Annotated[list[_FrozenPart], Field(min_length=1)] | None = None


FrozenOf = Annotated[
    FrozenSpec, BeforeValidator(_frozen_block, json_schema_input_type=int | str | list[str] | FrozenSpec)
]


def frozen(spec: FrozenSpec, dnn: Dnn, profile: Profile | None) -> tuple[Dnn, dict[str, object]]:
    """Return the network with frozen parts, and the block that says them whole.

    Raises
    ------
    ValueError
        For a network that is no transformer, whose seconds were measured, that lacks a part, or trains nothing.
    """
    network = dnn.transformer
    if network is None or profile is not None:
        why = "its seconds were measured, and those of what remains to be trained are not known"
        if network is None:
            why = "it is not known as a transformer, whose parts are counted"
        raise ValueError(f"{dnn.name} cannot have frozen parts: {why}. Leave frozen out; or name a transformer.")
    if not (spec.layers or spec.parts):
        raise ValueError("it freezes nothing. Write layers: 2, or parts: [embedding], say; or leave frozen out.")
    parts = [one for one in dict.fromkeys(spec.parts or []) if one != EMBEDDING or not spec.layers]
    trained = Trained(adapters=network.fine_tuning, frozen_layers=spec.layers or 0, frozen_parts=tuple(parts))
    block: dict[str, Any] = {"layers": spec.layers} if spec.layers else {}
    block |= {"parts": parts} if parts else {}
    found = dnn_of(replace(network, trained=trained), dnn.name, source=dnn.source, dataset_samples=dnn.dataset_samples)
    return found, block


class RotaryScalingSpec(Model):
    """Longer samples than at first."""

    kind: RotaryScalingKind
    factor: Positive
    original_length: Count | None = None
    low_frequency_factor: Positive | None = None
    high_frequency_factor: Positive | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    scale: Positive | None = None
    scale_all: Positive | None = None
    attention_factor: Positive | None = None
    truncated: bool | None = None


_Base = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]  # Mistral Small 3.1 has 1e9, Falcon-H1 1e11


class RotarySpec(Model):
    """Rotary positions."""

    base: _Base | None = None
    local_base: _Base | None = None
    fraction: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    interleaved: bool | None = None
    without_every: Annotated[int, Field(ge=0, le=4096)] | None = None
    longest: Count | None = None
    scaling: RotaryScalingSpec | None = None


class NumericsSpec(Model):
    """Figures and functions."""

    norm_epsilon: Epsilon | None = None
    activation: Activation | None = None
    activation_limit: Positive | None = None
    gate_offset: Annotated[float, Field(ge=-1e3, le=1e3, allow_inf_nan=False)] | None = None
    initial_deviation: Epsilon | None = None
    attention_softcap: Positive | None = None
    logit_softcap: Positive | None = None
    query_scalar: Positive | None = None
    embedding_scale: Positive | None = None
    residual_scale: Positive | None = None
    logit_scale: Positive | None = None
    zero_centred_norms: bool | None = None
    query_key_l2_norms: bool | None = None


class RoutingSpec(Model):
    """The router of experts."""

    score: Score | None = None
    normalised: bool | None = None
    scale: Positive | None = None
    input_scaled: bool | None = None
    auxiliary_loss: AuxiliaryLoss | None = None
    auxiliary_coefficient: Weight | None = None
    bias: RouterBias | None = None
    bias_update_rate: Weight | None = None
    z_loss: Weight | None = None
