"""What a transformer computes beside its sizes: angles, scales, activations, and how a router chooses.

No parameter, second or byte depends on these; a launch file that trains this very network does. The fields have the
meaning of the publishers' configurations, whose keys each docstring names (``config.json`` of Hugging Face).
"""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Literal, TypeVar

from planner.frozen import frozen

RotaryScalingKind = Literal["linear", "dynamic", "llama3", "yarn"]
Activation = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu_squared"]
Score = Literal["softmax", "sigmoid"]
AuxiliaryLoss = Literal["none", "batch", "sequence", "global_batch"]
RouterBias = Literal["selection", "linear"]

_MOST = 1e12  # beyond it no figure of a configuration is meant


def check_figures(where: object, *names: str, least: float = 0.0, most: float = _MOST) -> None:
    """Refuse figures of an object that are not above ``least`` (None is left to its default), or beyond all reason."""
    for name in names:
        value = getattr(where, name)
        if value is not None and not (math.isfinite(value) and least < value <= most):
            raise ValueError(f"{name} is {value}. Write a number above {least:g}, at most {most:g}.")


@frozen
class RotaryScaling:
    """How the angles of rotary positions are stretched for samples longer than those of the first training."""

    # ``linear`` and ``dynamic`` (S. Chen et al., arXiv 2306.15595), ``llama3`` (by frequency; Llama team, arXiv
    # 2407.21783, section 3.4.2), ``yarn`` (B. Peng et al., arXiv 2309.00071)
    kind: RotaryScalingKind
    factor: float  # of the length
    # tokens of the samples before (``original_max_position_embeddings``); ``llama3`` and ``yarn`` need it
    original_length: int | None = None
    # low_frequency_factor, high_frequency_factor: of ``llama3``: wavelengths longer than ``original_length / low`` are
    # stretched, shorter than ``original_length / high`` are not
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    # beta_fast, beta_slow: of ``yarn``: turns within ``original_length`` above which nothing, and below which all is
    # stretched
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    # scale, scale_all: of ``yarn`` as DeepSeek has it: ``mscale`` and ``mscale_all_dim``; None where they are not given
    scale: float | None = None
    scale_all: float | None = None
    # of ``yarn``: what queries and keys are multiplied with; None where it follows from the factor
    attention_factor: float | None = None
    is_truncated: bool = True  # of ``yarn``: whether the two ends of the ramp are rounded to whole dimensions

    def __post_init__(self) -> None:
        check_figures(self, *(one.name for one in fields(self) if one.name not in ("kind", "is_truncated")))
        if self.kind in ("llama3", "yarn") and self.original_length is None:
            raise ValueError(f"scaling of the kind '{self.kind}' needs original_length. Add it, e.g. 8192.")
        if self.kind == "llama3" and self.low_frequency_factor > self.high_frequency_factor:
            raise ValueError(
                f"low_frequency_factor {self.low_frequency_factor:g} is above high_frequency_factor "
                f"{self.high_frequency_factor:g}. Write e.g. 1 and 4."
            )


@frozen
class Rotary:
    """Rotary positions (J. Su et al., arXiv 2104.09864): queries and keys are turned by angles of their position."""

    base: float = 10_000.0  # of the angles' geometric row (``rope_theta``)
    # of the layers with a window, where it is another (Gemma 3: ``rope_local_base_freq``); these are not scaled then
    local_base: float | None = None
    # share of a head's width that is turned (``partial_rotary_factor``). Of latent attention the part ``rope_size`` is
    # turned whole
    fraction: float = 1.0
    # whether neighbouring numbers are turned together, not halves (GPT-J, DeepSeek, Llama 4)
    is_interleaved: bool = False
    without_every: int = 0  # every so-many-th layer has no positions (Llama 4: 4); 0: all have
    # tokens of the longest sample that the positions are meant for (``max_position_embeddings``)
    longest: int | None = None
    scaling: RotaryScaling | None = None  # of the angles, for longer samples

    def __post_init__(self) -> None:
        check_figures(self, "base", "local_base", "longest")
        check_figures(self, "fraction", most=1.0)
        check_figures(self, "without_every", least=-1, most=4096)


@frozen
class Numerics:
    """Figures and functions of a transformer."""

    norm_epsilon: float = 1e-5  # added under the root of every norm (``rms_norm_eps``, ``layer_norm_eps``)
    activation: Activation | None = None  # of the feed-forward part; None: ``silu`` where it is gated, else ``gelu``
    # what the inputs of the gate are cut off at (GPT-OSS: ``swiglu_limit``); None: not at all
    activation_limit: float | None = None
    gate_offset: float = 0.0  # added to what the gate multiplies (GPT-OSS: 1)
    initial_deviation: float = 0.02  # standard deviation of the weights at the start (``initializer_range``)
    # attention_softcap, logit_softcap: ``cap tanh(x / cap)`` of the scores and of the logits (Gemma 2:
    # ``attn_logit_softcapping``, ``final_logit_softcapping``); None: none
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    # scores are divided by its square root (Gemma: ``query_pre_attn_scalar``); None: by that of the head's size
    query_scalar: float | None = None
    # embedding_scale, residual_scale, logit_scale: what the embedding, each part's output before its residual addition,
    # and the logits are multiplied with
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    # whether a norm multiplies by one plus its scale (Gemma, Qwen3-Next, Nemotron-4)
    has_zero_centred_norms: bool = False
    # whether queries and keys are divided by their length, without a parameter (Llama 4: ``use_qk_norm``)
    has_query_key_l2_norms: bool = False

    def __post_init__(self) -> None:
        check_figures(self, "norm_epsilon", "initial_deviation", most=1.0)
        check_figures(self, "activation_limit", "attention_softcap", "logit_softcap", "query_scalar")
        check_figures(self, "embedding_scale", "residual_scale", "logit_scale")
        check_figures(self, "gate_offset", least=-_MOST)


PLAIN = Numerics()


@frozen
class Routing:
    """How a router scores experts, and how their load is balanced."""

    score: Score = "softmax"  # function of the router's products (``scoring_func``)
    is_normalised: bool = True  # whether the scores of a token's experts are made to add up to one (``norm_topk_prob``)
    scale: float = 1.0  # what these scores are multiplied with then (``routed_scaling_factor``)
    is_input_scaled: bool = False  # whether a score multiplies what enters its expert, not what leaves it (Llama 4)
    # auxiliary_loss, auxiliary_coefficient: over which tokens the loss that balances the load takes its means: those of
    # a micro-``batch``, of each ``sequence`` (DeepSeek: ``seq_aux``), of the ``global_batch`` (Qwen 3); and its weight
    # (``router_aux_loss_coef``)
    auxiliary_loss: AuxiliaryLoss = "batch"
    auxiliary_coefficient: float = 0.01
    # what the router's bias is, where it has one: added for the choice of experts alone (``selection``), or as any
    # matrix's (``linear``, GPT-OSS)
    bias: RouterBias = "selection"
    # step by which the bias for the choice follows the load: balancing without a loss (L. Wang et al., arXiv
    # 2408.15664); 0: none. The bias is there, too, where no parameter of it is counted
    bias_update_rate: float = 0.0
    # weight of the loss on the size of the router's products (B. Zoph et al., arXiv 2202.08906); 0: none
    z_loss: float = 0.0

    def __post_init__(self) -> None:
        check_figures(self, "scale")
        check_figures(self, "auxiliary_coefficient", "bias_update_rate", "z_loss", least=-1e-300, most=1e3)


def routing_of(*, has_router_bias: bool) -> Routing:
    """Return the usual routing: by a loss, or where the router has a bias as DeepSeek-V3's, by that.

    Source: DeepSeek-AI, arXiv 2412.19437, section 4.2, the rate of the first 14.3 T tokens.
    """
    if not has_router_bias:
        return Routing()
    return Routing(score="sigmoid", auxiliary_loss="none", bias_update_rate=1e-3)


# -- as the block of a spec has it -------------------------------------------------------------------------------------

Part = TypeVar("Part", Rotary, RotaryScaling, Numerics, Routing)
# Keys of a spec are the fields, without the first word of those that ask.
_KEYS = {
    "is_truncated": "truncated",
    "is_interleaved": "interleaved",
    "is_normalised": "normalised",
    "is_input_scaled": "input_scaled",
    "has_zero_centred_norms": "zero_centred_norms",
    "has_query_key_l2_norms": "query_key_l2_norms",
}


def block_of(part: Part, default: Part | None = None) -> dict[str, object]:
    """Return the block of a spec that describes a part: what is other than in ``default``, or than its field's own.

    >>> block_of(Rotary(base=5e5, scaling=RotaryScaling(kind="linear", factor=8)))
    {'base': 500000.0, 'scaling': {'kind': 'linear', 'factor': 8}}
    """
    found: dict[str, Any] = {}
    for one in fields(part):
        value = getattr(part, one.name)
        if value != (one.default if default is None else getattr(default, one.name)):
            found[_KEYS.get(one.name, one.name)] = block_of(value) if isinstance(value, RotaryScaling) else value
    return found


def part_of(default: Part, block: Mapping[str, object]) -> Part:
    """Return a part with what a block of a spec says of it: :func:`block_of` the other way round.

    Raises
    ------
    ValueError
        If a figure cannot be; the message says which.
    """
    given = _given(type(default), block)
    if scaling := given.get("scaling"):
        given["scaling"] = RotaryScaling(**_given(RotaryScaling, scaling))
    return replace(default, **given)


def _given(kind: type[Any], block: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a block gives of the fields of a kind, under their names."""
    keys = {one.name: _KEYS.get(one.name, one.name) for one in fields(kind)}
    return {name: block[key] for name, key in keys.items() if block.get(key) is not None}
