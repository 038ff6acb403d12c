"""The network of Megatron-LM's options, read back: what :mod:`planner.families.hybrid.launch_network` writes.

Options come from a command, or from a file that other names were read from (Megatron-Bridge, Primus); texts are never
run: a pattern of layers is read by :func:`pattern_of`.
"""

import re
import shlex
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from planner.exporters.scripts import Parsed, flags_of
from planner.families.hybrid.launch_network import (
    ACTIVATIONS,
    AUXILIARY_LOSSES,
    LLAMA3_SCALING,
    NORMS,
    POSITIONS,
    YARN_SCALING,
)
from planner.mixers import DeltaNet, Mamba
from planner.numerics import Numerics, Rotary, RotaryScaling, Routing
from planner.transformer import Transformer
from planner.transformer_parts import MOST_LAYERS, Experts, LatentAttention

T = TypeVar("T")

_LIST = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?")
_PATTERNS = {"moe-layer-freq", "window-attn-skip-freq", "linear-attention-freq"}
_STACK, _CUT_STACK = "hybrid-override-pattern", "hybrid-layer-pattern"
_POINTLESS = re.compile(r"((?:: |- )-?\d+)(e[-+]?\d+$)", re.MULTILINE)
_LISTS = {
    "recompute-modules",
    "offload-modules",
    "cuda-graph-scope",
    "hierarchical-context-parallel-sizes",
    "cp-comm-type",
}  # of one value, too
ENDS = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
ROPE_FACTOR = 8.0  # where --use-rope-scaling stands alone
_BIAS_RATE = 1e-3
_SCORES = {"softmax": "softmax", "sigmoid": "sigmoid"}


def transformer_of(file: Parsed) -> Transformer:
    """Return the network that options describe.

    Raises
    ------
    SpecError
        If a size is missing or no number, a name is none, or the sizes do not go together.
    """
    flags = file.flags
    num_heads, sequence_length = file.count("num-attention-heads"), file.count("seq-length")
    has_biases = "disable-bias-linear" not in flags
    is_latent = "multi-latent-attention" in flags
    is_yarn = file.value("position-embedding-type") == "yarn"
    positions = "rotary" if is_yarn else named_word(file, "position-embedding-type", POSITIONS, "learned_absolute")
    longest = file.count("max-position-embeddings", sequence_length)
    sizes: dict[str, Any] = {
        "num_layers": file.count("num-layers") + file.count("mtp-num-layers", 0, least=0),
        "num_mtp_layers": file.count("mtp-num-layers", 0, least=0),
        "hidden_size": file.count("hidden-size"),
        "num_heads": num_heads,
        "feed_forward_size": file.count("ffn-hidden-size", 4 * file.count("hidden-size")),
        "vocabulary_size": _vocabulary(file),
        "sequence_length": sequence_length,
        "num_positions": longest if positions == "learned" else sequence_length,
        "positions": positions,
        "norm": named_word(file, "normalization", NORMS, "LayerNorm"),
        "has_tied_embeddings": "untie-embeddings-and-output-weights" not in flags,
        "has_biases": has_biases,
        "has_qkv_biases": has_biases or "add-qkv-bias" in flags,
        "has_query_key_norms": "qk-layernorm" in flags and not is_latent,
        "latent": _latent(file) if is_latent else None,
        "experts": _experts(file),
        "rotary": _rotary(file, is_latent=is_latent, longest=longest) if positions == "rotary" else None,
    }
    if sizes["norm"] == "layer_norm":
        sizes["has_norm_biases"] = True
    sizes |= _layers(file, file.count("num-layers"))
    if not is_latent:
        sizes["num_kv_heads"] = file.count("num-query-groups") if "group-query-attention" in flags else num_heads
        if "kv-channels" in flags:
            sizes["head_size"] = file.count("kv-channels")
    try:
        return Transformer(**sizes, **_figures(file))
    except ValueError as error:
        raise file.fault(str(error), hint="Correct the sizes.") from None


def values_of(words: str) -> dict[str, object]:
    """Return options of a command as values: numbers, texts, lists of them, and True for a switch.

    >>> values_of("--num-layers 2 --lr 1e-4 --swiglu --recompute-modules mlp moe")
    {'num-layers': 2, 'lr': 0.0001, 'swiglu': True, 'recompute-modules': ['mlp', 'moe']}
    """
    found: dict[str, Any] = {}
    for name, texts in flags_of(shlex.split(words.replace("\\\n", " "))).items():
        values = [_value(text) for text in texts]
        found[name] = True if not values else values[0] if len(values) == 1 and name not in _LISTS else values
    return found


def with_lists(values: Mapping[str, object], num_layers: int) -> dict[str, object]:
    """Return values whose windows and patterns of layers are lists of numbers, as a configuration has them.

    And whose stages of layers of one part are alike but for the first and the last, as programs on top of an older
    Megatron-LM are told of them (``megatron/core/ssm/mamba_block.py`` of megatron-core 0.16.1).

    >>> with_lists({"hybrid-layer-pattern": "M-|*-"}, 4)
    {'hybrid-override-pattern': 'M-*-'}
    >>> with_lists({"window-size": "127,0", "window-attn-skip-freq": "[1,0]*2"}, 4)
    {'window-size': [127, 0], 'window-attn-skip-freq': [1, 0, 1, 0]}
    """
    file, found = file_of_values(Path(), values), dict(values)
    for name in _PATTERNS & values.keys():
        found[name] = list(pattern_of(file, name, num_layers))
    if "window-size" in values:
        found["window-size"] = [int(one) for one in str(values["window-size"]).split(",")]
    if _CUT_STACK in values:
        first, *between, last = str(found.pop(_CUT_STACK)).split("|")
        found[_STACK] = "".join([first, *between, last])
        if len({*map(len, (first, *between, last))}) > 1:
            found |= dict(zip(ENDS, (len(first), len(last)), strict=True))
    return found


def file_of_values(path: Path, values: Mapping[str, object]) -> Parsed:
    """Return values by option as the options of a command: what is False or None is left out.

    >>> file_of_values(Path("x.yaml"), {"num-layers": 2, "swiglu": True, "bf16": False}).flags
    {'num-layers': ['2'], 'swiglu': []}
    """
    flags: dict[str, list[str]] = {}
    for name, value in values.items():
        if isinstance(value, list | tuple) and (name in _PATTERNS or name == "window-size"):
            text = ",".join(map(str, value))
            flags[name] = [f"[{text}]" if name in _PATTERNS else text]
        elif value is not None and value is not False:
            flags[name] = [] if value is True else [str(one) for one in (value if isinstance(value, list) else [value])]
    return Parsed(path, flags, is_text=True)


def with_points(text: str) -> str:
    """Return YAML whose small numbers have a point, without which older readers take them for texts.

    >>> with_points("lr: 1e-05"), with_points("- 2.5e-06")
    ('lr: 1.0e-05', '- 2.5e-06')
    """
    return _POINTLESS.sub(r"\1.0\2", text)


def _value(text: str) -> int | float | str:
    """Return the number that a text is, or the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _layers(file: Parsed, num_layers: int) -> dict[str, Any]:
    """Return what the layers are made of, where that is no full attention and feed-forward part."""
    flags = file.flags
    found: dict[str, Any] = {
        "has_sinks": file.value("softmax-type") == "learnable",
        "has_attention_gate": "attention-output-gate" in flags,
    }
    if is_stack(flags):
        found["pattern"] = "".join(parts_of_stack(file))
    if "window-size" in flags:
        text = str(file.value("window-size")).strip("()[] ")
        before = text.partition(",")[0].strip()
        if not before.isdigit():
            raise file.fault(f"{text[:60]!r} is no window.", f"{file.mark}window-size", "Write e.g. 127,0.")
        found["window"] = int(before[:9]) + 1
        found["mixers"] = _mixers(file, "window-attn-skip-freq", "window", num_layers)
    if "experimental-attention-variant" in flags:
        found["mixers"] = _mixers(file, "linear-attention-freq", "delta", num_layers)
        found["delta"] = built(
            file,
            DeltaNet,
            num_key_heads=file.count("linear-num-key-heads", 16),
            num_value_heads=file.count("linear-num-value-heads", 32),
            key_size=file.count("linear-key-head-dim", 128),
            value_size=file.count("linear-value-head-dim", 128),
            conv_kernel=file.count("linear-conv-kernel-dim", 4),
        )
    if "M" in found.get("pattern", ""):
        found["mamba"] = built(
            file,
            Mamba,
            num_heads=file.count("mamba-num-heads"),
            head_size=file.count("mamba-head-dim", 64),
            state_size=file.count("mamba-state-dim", 128),
            num_groups=file.count("mamba-num-groups", 8),
        )
    return found


def is_stack(flags: Collection[str]) -> bool:
    """Whether options are of layers of one part each."""
    return not {_STACK, _CUT_STACK}.isdisjoint(flags)


def parts_of_stack(file: Parsed) -> list[str]:
    """Return the letters of layers of one part, those of each virtual stage where they are cut."""
    return str(file.value(_CUT_STACK, file.value(_STACK, ""))).split("|")


def _mixers(file: Parsed, option: str, mixer: str, num_layers: int) -> tuple[str, ...]:
    """Return the mixers of the layers, as few as repeat; without a pattern all are the one."""
    marks: tuple[int, ...] = (1,) * num_layers
    if option in file.flags:
        text = str(file.value(option))
        marks = pattern_of(file, option, num_layers)
        if text.strip().isdigit():  # every N-th layer has full attention
            marks = tuple(int((index + 1) % int(text) != 0) for index in range(num_layers))
    sizes = (size for size in range(1, num_layers + 1) if num_layers % size == 0)
    size = next(size for size in sizes if marks == marks[:size] * (num_layers // size))
    return tuple(mixer if one else "attention" for one in marks[:size])


def pattern_of(file: Parsed, name: str, length: int) -> tuple[int, ...]:
    """Return a pattern such as ``([0]*3+[1]*58)``, or a number N, which means every N-th; the text is not run.

    Raises
    ------
    SpecError
        If it is no such pattern, or not of so many layers.
    """
    text = str(file.value(name, 1)).strip().removeprefix("(").removesuffix(")")
    if text.isdigit() and 0 < int(text[:5]) <= MOST_LAYERS:
        return tuple(int(index % int(text) == 0) for index in range(length))
    found: list[int] = []
    for part in text.split("+"):
        if (one := _LIST.fullmatch(part)) is None:
            raise file.fault(
                f"{text[:60]!r} is no pattern of layers.", f"{file.mark}{name}", "Write e.g. ([0]*3+[1]*58)."
            )
        found += [int(digit) for digit in one[1].split(",")] * int(one[2] or 1)
    if len(found) != length:
        raise file.fault(f"{text[:60]!r} is for {len(found)} layers of {length}.", f"{file.mark}{name}", "Correct one.")
    return tuple(found)


def _vocabulary(file: Parsed) -> int:
    """Return the rows of the embedding: the tokenizer's words and its one more, padded as asked for."""
    words = file.count("vocab-size") + int(file.value("tokenizer-type") == "NullTokenizer")
    multiple = file.count("make-vocab-size-divisible-by", 128) * file.count("tensor-model-parallel-size", 1)
    return -(-words // multiple) * multiple if multiple > 1 else words


def named_word(file: Parsed, option: str, names: Mapping[str, str], default: str) -> str:
    """Return what an option's word is called here."""
    text = str(file.value(option, default))
    for name, word in names.items():
        if word == text:
            return name
    hint = f"Write one of {', '.join(names.values())}."
    raise file.fault(f"{text[:60]!r} is none.", f"{file.mark}{option}", hint)


def figure(file: Parsed, option: str, default: float) -> float:
    """Return a number that need not be whole."""
    text = file.value(option, default)
    try:
        return float(text)
    except (TypeError, ValueError):
        raise file.fault(f"{str(text)[:60]!r} is no number.", f"{file.mark}{option}", "Write a number.") from None


def _figures(file: Parsed) -> dict[str, Any]:
    """Return what is gated, and the figures."""
    flags = file.flags
    given = [(is_gated, name) for (is_gated, name), option in ACTIVATIONS.items() if option and option in flags]
    is_gated, activation = given[0] if given else (False, "gelu")
    usual = "silu" if is_gated else "gelu"
    limit = figure(file, "activation-func-clamp-value", 0.0)
    numerics = built(
        file,
        Numerics,
        norm_epsilon=figure(file, "norm-epsilon", 1e-5),
        activation=None if activation == usual else activation,
        activation_limit=limit or None,
        gate_offset=figure(file, "glu-linear-offset", 0.0),
        initial_deviation=figure(file, "init-method-std", 0.02),
        has_zero_centred_norms="apply-layernorm-1p" in flags,
        has_query_key_l2_norms="qk-l2-norm" in flags,
    )
    return {"is_gated": is_gated, "numerics": numerics}


def _rotary(file: Parsed, *, is_latent: bool, longest: int) -> Rotary:
    flags = file.flags
    scaling: RotaryScaling | None = None
    if file.value("position-embedding-type") == "yarn":
        is_truncated = "yarn-correction-range-round-to-int" in flags
        scaling = _yarn(file, "yarn-", scale=0.0, is_truncated=is_truncated)
    elif is_latent and str(file.value("rope-type", "yarn")) == "yarn":
        scaling = _yarn(file, "", scale=1.0, is_truncated=True)
    elif "use-rope-scaling" in flags:
        factor = figure(file, "rope-scaling-factor", ROPE_FACTOR)
        scaling = built(file, RotaryScaling, kind="llama3", factor=factor, **LLAMA3_SCALING)
    elif "rotary-seq-len-interpolation-factor" in flags:
        factor = figure(file, "rotary-seq-len-interpolation-factor", 1.0)
        scaling = built(file, RotaryScaling, kind="linear", factor=factor)
    return built(
        file,
        Rotary,
        base=figure(file, "rotary-base", 10_000.0),
        fraction=figure(file, "rotary-percent", 1.0),
        is_interleaved=is_latent or "rotary-interleaved" in flags,
        without_every=file.count("no-rope-freq", 0, least=0),
        longest=None if longest == file.count("seq-length") else longest,
        scaling=scaling,
    )


def _yarn(file: Parsed, prefix: str, *, scale: float, is_truncated: bool) -> RotaryScaling:
    """Return the scaling of YaRN, whose options begin with a prefix; ``scale``: what it is where none is given.

    Megatron-LM has the prefix for some of them, Megatron-Bridge for all.
    """
    names, start = {"beta_fast": "beta-fast", "beta_slow": "beta-slow"}, prefix
    if f"{prefix}rotary-scaling-factor" not in file.flags:
        start = ""
    return built(
        file,
        RotaryScaling,
        kind="yarn",
        factor=figure(file, f"{start}rotary-scaling-factor", 1.0),
        scale=figure(file, f"{start}mscale", scale) or None,
        scale_all=figure(file, f"{start}mscale-all-dim", 0.0) or None,
        is_truncated=is_truncated,
        original_length=file.count(f"{prefix}original-max-position-embeddings", int(YARN_SCALING["original_length"])),
        **{name: figure(file, f"{prefix}{option}", YARN_SCALING[name]) for name, option in names.items()},
    )


def _latent(file: Parsed) -> LatentAttention:
    """Return latent attention."""
    return built(
        file,
        LatentAttention,
        query_rank=file.count("q-lora-rank") if "q-lora-rank" in file.flags else None,
        key_value_rank=file.count("kv-lora-rank", 32),
        rope_size=file.count("qk-pos-emb-head-dim", 64),
        nope_size=file.count("qk-head-dim", 128),
        value_size=file.count("v-head-dim", 128),
    )


def _experts(file: Parsed) -> Experts | None:
    """Return the mixture of experts, where there is one."""
    flags = file.flags
    if "num-experts" not in flags:
        return None
    size, layers = file.count("moe-ffn-hidden-size", file.count("ffn-hidden-size", 1)), file.count("num-layers")
    shared = file.count("moe-shared-expert-intermediate-size", 0, least=0)
    # As many shared experts as fit; where their common width is no multiple, one of that width.
    num_shared = shared // size if shared and shared % size == 0 else int(shared > 0)
    has_biases = "disable-bias-linear" not in flags  # of all matrices, the router's among them
    has_bias = "moe-router-enable-expert-bias" in flags
    # The one score of a token's one expert is left as it is.
    is_alone = file.value("moe-router-score-function") == "sigmoid" and file.count("moe-router-topk", 2) == 1
    loss = named_word(file, "moe-router-load-balancing-type", AUXILIARY_LOSSES, "aux_loss")
    routing = built(
        file,
        Routing,
        score=named_word(file, "moe-router-score-function", _SCORES, "softmax"),
        is_normalised="moe-router-pre-softmax" not in flags and not is_alone,
        scale=figure(file, "moe-router-topk-scaling-factor", 1.0),
        is_input_scaled="moe-apply-probs-on-input" in flags,
        auxiliary_loss=loss,
        auxiliary_coefficient=figure(file, "moe-aux-loss-coeff", 0.01 if loss == "none" else 0.0),
        bias="linear" if has_biases and not has_bias else "selection",
        bias_update_rate=figure(file, "moe-router-bias-update-rate", _BIAS_RATE) if has_bias else 0.0,
        z_loss=figure(file, "moe-z-loss-coeff", 0.0),
    )
    is_listed = is_stack(flags)  # which says what has experts
    with_experts = (1,) * layers if is_listed else pattern_of(file, "moe-layer-freq", layers)
    every, first = _spread(with_experts)
    if every is None:
        raise file.fault("these layers with experts are not equally far apart.", f"{file.mark}moe-layer-freq")
    return built(
        file,
        Experts,
        num_experts=file.count("num-experts"),
        top_k=file.count("moe-router-topk", 2),
        expert_size=size,
        latent_size=file.count("moe-latent-size") if "moe-latent-size" in flags else None,
        num_shared=num_shared,
        shared_size=shared // num_shared if num_shared else None,
        every=every,
        num_dense_first=first,
        has_router_bias=has_bias or has_biases,
        has_shared_gate="moe-shared-expert-gate" in flags,
        groups=file.count("moe-router-num-groups", 1),
        top_groups=file.count("moe-router-group-topk", 1),
        routing=routing,
    )


def _spread(with_experts: tuple[int, ...]) -> tuple[int | None, int]:
    """Return how far layers with experts are apart, None where unequally, and how many layers come before the first."""
    places = [index for index, one in enumerate(with_experts) if one]
    if not places:
        return 1, len(with_experts)
    steps = {after - before for before, after in pairwise(places)}
    every = steps.pop() if len(steps) == 1 else 1
    fits = not steps and list(range(places[0], len(with_experts), every)) == places
    if len(places) == 1:
        every, fits = max(1, len(with_experts) - places[0]), True
    return (every if fits else None), places[0]


def built(file: Parsed, part: Callable[..., T], /, **values: object) -> T:
    """Return a part of a network; raise SpecError where its figures cannot be."""
    try:
        return part(**values)
    except ValueError as error:
        raise file.fault(str(error), hint="Correct the options.") from None
