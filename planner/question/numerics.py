"""What a spec may say of a transformer beside its sizes: ``rotary``, ``numerics``, and ``routing`` of its experts.

What is left out has the defaults of :mod:`planner.numerics`, which checks the figures.
"""

from typing import Annotated

from pydantic import Field

from planner.numerics import Activation, AuxiliaryLoss, RotaryScalingKind, RouterBias, Score
from planner.question.values import Count, Model, Positive

Weight = Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False)]
Epsilon = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class RotaryScalingSpec(Model):
    """Longer samples than at first; see :class:`planner.numerics.RotaryScaling`."""

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


class RotarySpec(Model):
    """Rotary positions; see :class:`planner.numerics.Rotary`."""

    base: Positive | None = None
    local_base: Positive | None = None
    fraction: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    interleaved: bool | None = None
    without_every: Annotated[int, Field(ge=0, le=4096)] | None = None
    longest: Count | None = None
    scaling: RotaryScalingSpec | None = None


class NumericsSpec(Model):
    """Figures and functions; see :class:`planner.numerics.Numerics`."""

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
    """The router of experts; see :class:`planner.numerics.Routing`."""

    score: Score | None = None
    normalised: bool | None = None
    scale: Positive | None = None
    input_scaled: bool | None = None
    auxiliary_loss: AuxiliaryLoss | None = None
    auxiliary_coefficient: Weight | None = None
    bias: RouterBias | None = None
    bias_update_rate: Weight | None = None
    z_loss: Weight | None = None
