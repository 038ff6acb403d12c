"""Networks that Megatron-Bridge has a model of its own for: Gemma 2, Gemma 3 and Llama 4.

What Megatron-LM's options cannot say of them (norms on both sides, caps, angles by kind of layer, windows that are
chunks) is said by fields of these models, and the rest as that of any other. Fields, and what a model does by itself:
``megatron/bridge/models/gemma/gemma2_provider.py``, ``gemma/gemma3_provider.py``, ``llama/llama_provider.py``
(``Llama4ModelProvider``) and ``llama/llama4_utils.py`` of Megatron-Bridge 0.3.1.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.exporters.huggingface_config import architecture_of
from planner.exporters.megatron_network import built
from planner.exporters.scripts import Parsed
from planner.frozen import frozen
from planner.numerics import RotaryScaling
from planner.transformer import Transformer

_GATED_GELU = "fast_gelu"  # the one by tanh
_SCORE_BYTES = 4  # of a score and what the softmax makes of it, kept for the backward pass
# Names of fields, as an option has them, that a model of its own is read by; and those that stand beside them.
_SECOND, _THIRD, _FOURTH = "attn-logit-softcapping", "interleaved-attn-pattern", "attention-chunk-size"
_BESIDE = {
    _SECOND: ("final-logit-softcapping", "query-pre-attn-scalar", "window-size"),
    _THIRD: ("rotary-base", "rope-scaling-factor", "softmax-scale", "window-size", "is-vision-language"),
    _FOURTH: ("nope-layer-interval",),
}


@frozen
class OwnModel:
    """A model of Megatron-Bridge's own."""

    # provider, module: class, and where it stands
    provider: str
    module: str
    plain: Transformer  # the network less what the model has by itself: what is left is said by Megatron-LM's options
    fields: Mapping[str, Any]  # of the model, beside those that options say
    left_out: tuple[str, ...] = ()  # fields that options would say, and the model must not be given
    tuples: tuple[str, ...] = ()  # fields that are tuples there
    notes: tuple[str, ...] = ()  # what is otherwise than in the published network
    # of a head and a pair of tokens: what is kept for the backward pass where no kernel is fused
    score_bytes: float = 0.0


def own_model_of(network: Transformer) -> OwnModel | None:
    """Return the model of its own that a network is; None where it is none."""
    kind = architecture_of(network)
    if kind == "gemma2":
        return _second_gemma(network)
    if kind == "gemma3_text":
        return _third_gemma(network)
    return _fourth_llama(network) if network.has_chunked_windows else None


def _plain(network: Transformer, **more: Any) -> Transformer:
    """Return a network of Gemma's less what its models have by themselves."""
    figures, rotary = network.numerics, network.rotary
    assert rotary is not None, "architecture_of has asked"
    return replace(
        network,
        norm_position="before",
        mixers=("attention",),
        window=None,
        rotary=replace(rotary, local_base=None, scaling=None),
        numerics=replace(
            figures, activation=None, attention_softcap=None, logit_softcap=None, query_scalar=None, embedding_scale=1.0
        ),
        **more,
    )


def _second_gemma(network: Transformer) -> OwnModel | None:
    """Return Gemma 2, whose windows stand in every second layer, from the second on."""
    figures, rotary = network.numerics, network.rotary
    if network.window is None or len(network.mixers) != 2 or set(network.mixers) != {"window", "attention"}:
        return None
    if rotary is None or rotary.scaling is not None:
        return None
    notes = []
    if network.mixers[0] == "window":
        notes.append(
            "its Gemma 2 has windows in layers 2, 4, ..., and the network in 1, 3, ...: as many, one layer later"
        )
    return OwnModel(
        provider="Gemma2ModelProvider",
        module="megatron.bridge.models.gemma.gemma2_provider",
        plain=_plain(network),
        fields={
            "activation_func": _GATED_GELU,
            "gated_linear_unit": True,
            "window_size": [network.window - 1, 0],
            "query_pre_attn_scalar": figures.query_scalar,
            "attn_logit_softcapping": figures.attention_softcap,
            "final_logit_softcapping": figures.logit_softcap,
            "gradient_accumulation_fusion": False,
        },
        left_out=("attention_backend", "window_attn_skip_freq"),
        tuples=("window_size",),
        notes=tuple(notes),
        score_bytes=_SCORE_BYTES,
    )


def _third_gemma(network: Transformer) -> OwnModel | None:
    """Return Gemma 3, in which one layer of so many has full attention, the last of them."""
    figures, rotary, mixers = network.numerics, network.rotary, network.mixers
    if network.window is None or mixers[-1] != "attention" or {*mixers[:-1]} != {"window"}:
        return None
    if rotary is None or (rotary.scaling is not None and rotary.scaling.kind != "linear"):
        return None
    return OwnModel(
        provider="Gemma3ModelProvider",
        module="megatron.bridge.models.gemma.gemma3_provider",
        plain=_plain(network),
        fields={
            "activation_func": _GATED_GELU,
            "gated_linear_unit": True,
            "window_size": network.window - 1,
            "interleaved_attn_pattern": [len(mixers) - 1, 1],
            "rotary_base": [rotary.local_base, rotary.base],
            "rope_scaling_factor": 1.0 if rotary.scaling is None else float(rotary.scaling.factor),
            "softmax_scale": (figures.query_scalar or network.head_size) ** -0.5,
            "is_vision_language": False,
            "gradient_accumulation_fusion": False,
        },
        left_out=("window_attn_skip_freq", "seq_len_interpolation_factor"),
        tuples=("interleaved_attn_pattern", "rotary_base"),
    )


def _fourth_llama(network: Transformer) -> OwnModel | None:
    """Return Llama 4, whose layers without positions attend to all tokens, and the others within their chunk."""
    rotary, window = network.rotary, network.window
    every = rotary.without_every if rotary is not None else 0
    is_like = every > 1 and network.mixers == ("window",) * (every - 1) + ("attention",)
    if window is None or not is_like or network.latent is not None:
        return None
    assert rotary is not None, "every is more than 0"
    return OwnModel(
        provider="Llama4ModelProvider",
        module="megatron.bridge.models.llama.llama_provider",
        plain=replace(
            network,
            mixers=("attention",),
            window=None,
            has_chunked_windows=False,
            rotary=replace(rotary, without_every=0),
        ),
        fields={
            "attention_chunk_size": window,
            "nope_layer_interval": every,
            "apply_rope_fusion": False,
            # what options leave to the program's own, and this model has otherwise
            "qk_l2_norm": network.numerics.has_query_key_l2_norms,
            "rope_scaling": rotary.scaling is not None,
            "moe_shared_expert_overlap": False,
        },
        left_out=("window_size", "window_attn_skip_freq", "no_rope_freq"),
    )


# -- back again --------------------------------------------------------------------------------------------------------


def own_fields(values: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that a model of its own is read by, of a recipe's values by the names of options."""
    kind = next((name for name in _BESIDE if name in values), None)
    return {} if kind is None else {name: values[name] for name in (kind, *_BESIDE[kind]) if name in values}


def with_own(file: Parsed, fields: Mapping[str, object], network: Transformer) -> Transformer:
    """Return a network with what a model of Megatron-Bridge's own has: :func:`own_model_of` the other way round.

    Raises
    ------
    SpecError
        If a field is missing, or no number.
    """
    if not fields:
        return network
    own = Parsed(file.path, fields)
    rotary, figures = network.rotary, network.numerics
    if rotary is None:
        raise file.fault("its own models have rotary positions.", "position_embedding_type")
    if _FOURTH in fields:
        every = own.count("nope-layer-interval")
        return _rebuilt(
            file,
            network,
            mixers=("window",) * (every - 1) + ("attention",),
            window=own.count(_FOURTH),
            has_chunked_windows=True,
            rotary=replace(rotary, without_every=every),
        )
    gemma = replace(figures, activation="gelu_tanh", embedding_scale=float(network.hidden_size) ** 0.5)
    if _SECOND in fields:
        window = fields.get("window-size")
        if not isinstance(window, list) or not window or not isinstance(window[0], int):
            raise file.fault(f"{str(window)[:60]!r} is no window.", "window_size", "Write e.g. [4095, 0].")
        caps = {name: _number(own, name) for name in (_SECOND, "final-logit-softcapping", "query-pre-attn-scalar")}
        gemma = replace(
            gemma,
            attention_softcap=caps[_SECOND],
            logit_softcap=caps["final-logit-softcapping"],
            query_scalar=caps["query-pre-attn-scalar"],
        )
        return _rebuilt(
            file, network, norm_position="both", mixers=("attention", "window"), window=window[0] + 1, numerics=gemma
        )
    pattern, bases = fields.get(_THIRD), fields.get("rotary-base")
    if not isinstance(pattern, list) or len(pattern) != 2 or not isinstance(bases, list) or len(bases) != 2:
        raise file.fault("each of them is two numbers.", "interleaved_attn_pattern, rotary_base", "Export again.")
    parts = {str(index): one for index, one in enumerate((*pattern, *bases))}
    pairs = Parsed(file.path, parts)
    factor, scale = _number(own, "rope-scaling-factor"), _number(own, "softmax-scale")
    scaling = None if factor == 1 else built(file, RotaryScaling, kind="linear", factor=factor)
    return _rebuilt(
        file,
        network,
        norm_position="both",
        mixers=("window",) * pairs.count("0") + ("attention",),
        window=own.count("window-size") + 1,
        rotary=replace(rotary, local_base=_number(pairs, "2"), base=_number(pairs, "3"), scaling=scaling),
        numerics=replace(gemma, query_scalar=round(scale**-2, 6)),
    )


def _rebuilt(file: Parsed, network: Transformer, **changes: Any) -> Transformer:
    """Return a network with changes; raise SpecError where they cannot be."""
    try:
        return replace(network, **changes)
    except ValueError as error:
        raise file.fault(str(error), hint="Correct the fields.") from None


def _number(file: Parsed, name: str) -> float:
    """Return a number above 0 of a mapping of literals."""
    found = file.value(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not found > 0:
        raise file.fault(f"{str(found)[:60]!r} is no number above 0.", name.replace("-", "_"), "Export again.")
    return float(found)
