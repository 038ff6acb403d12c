"""A network that is none of torchtitan 0.3.0's own, as a module of its parts: sizes, positions, epsilon, experts.

Parts and their arguments: ``torchtitan/models/common/config_utils.py`` and ``rope.py``,
``torchtitan/models/{llama3,qwen3,deepseek_v3,gpt_oss}/__init__.py`` of torchtitan 0.3.0; products in eight and four
bits: ``torchtitan/components/quantization/{float8,mx,nvfp4}.py``. The module has the figures in one table, by the names
that torchtitan gives them, which is read back without running it.
"""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.exporters.scripts import LATENT, Parsed, in_our_names, in_their_names, literal, shipped_program
from planner.exporters.training_blocks import adapters_of, constants_of
from planner.numerics import Numerics, Rotary, RotaryScaling, RotaryScalingKind, Routing
from planner.problem import LowPrecision
from planner.transformer import Transformer
from planner.transformer_parts import Experts, LatentAttention

MODULE, CONFIG = "planned_torchtitan", "planned"
_NETWORK, _CONVERTERS, _COMPILED, _ADAPTERS = "NETWORK", "CONVERTERS", "COMPILED", "ADAPTERS"
_LAYER = re.compile(r"\blayers\.(\d{1,6})\b")
_OSS = Numerics(
    activation="quick_gelu", activation_limit=7.0, gate_offset=1.0
)  # as its experts compute (``gpt_oss/moe.py``)
_OSS_HEADS = {"num_heads": 64, "num_kv_heads": 8, "head_size": 64, "window": 128}  # that its layers are built with
_SCALINGS: Mapping[RotaryScalingKind, str] = {"llama3": "llama", "yarn": "yarn"}
_PARTS = ("attention", "feed_forward", "moe.shared_experts")  # products of a layer, beside those of routed experts


def family_of(network: Transformer) -> str | None:
    """Return the one of torchtitan's models that a network is built from; None where none has all of its parts."""
    figures, rotary, experts = network.numerics, network.rotary, network.experts
    is_oss = network.has_sinks
    plain = Numerics(
        norm_epsilon=figures.norm_epsilon,
        initial_deviation=figures.initial_deviation,
        activation="quick_gelu" if is_oss else figures.activation,
        activation_limit=_OSS.activation_limit if is_oss else None,
        gate_offset=_OSS.gate_offset if is_oss else 0.0,
    )
    is_plain = (
        rotary is not None
        and (rotary.fraction, rotary.without_every, rotary.local_base) == (1, 0, None)
        and network.is_causal
        and network.is_gated
        and network.activation == ("quick_gelu" if is_oss else "silu")
        and network.norm == "rms_norm"
        and network.norm_position == "before"
        and network.has_norm_scales
        and network.head == "language"
        and figures == plain
        and not (network.has_head_bias or network.has_embedding_norm or network.has_attention_gate)
        and not (experts is not None and (experts.has_shared_gate or experts.latent_size or experts.routing.z_loss))
        and not (experts is not None and experts.routing.is_input_scaled)
        and not (network.has_query_key_norms and network.query_key_norm_span != "head")
        and network.pattern is None
        and network.sparse is None
        and network.encoder is None
        and not network.trained.has_frozen
    )
    if not is_plain or rotary is None:
        return None
    scaling = rotary.scaling.kind if rotary.scaling is not None else None
    found = rotary.scaling
    if found is not None and (found.attention_factor is not None or found.scale != found.scale_all):
        return None  # it has one scale of the scores
    if network.num_mtp_layers and network.latent is None:
        return None  # its DeepSeek-V3 alone has them (``deepseek_v3/mtp.py``)
    if is_oss:
        has_sizes = all(getattr(network, name) == value for name, value in _OSS_HEADS.items())
        alternates = network.mixers == ("window", "attention")
        is_whole = experts is not None and experts.every == 1 and not (experts.num_dense_first or experts.num_shared)
        return "gpt_oss" if has_sizes and alternates and is_whole and scaling in (None, "yarn") else None
    if network.has_biases or network.has_output_bias or network.window:
        return None
    if not {name.removeprefix("mtp+") for name in network.kind_counts} <= {"dense", "moe"}:
        return None
    if network.latent is not None:
        is_like = experts is not None and experts.every == 1 and experts.num_shared > 0
        is_like = is_like and experts is not None and experts.shared_size == experts.expert_size
        is_like = is_like and not network.has_qkv_biases
        return "deepseek_v3" if is_like and scaling in (None, "yarn") and not network.has_query_key_norms else None
    if scaling not in (None, "llama3"):  # of others the scores have a scale, which its attention has not
        return None
    if experts is None and not (network.has_query_key_norms or network.has_qkv_biases):
        return "llama3"
    if experts is not None and (experts.num_shared or experts.groups > 1):
        return None
    return "qwen3"


# Of an adapter's matrix here, those of torchtitan; what is no whole matrix there has no name.
_TUNED = {"qkv": ("wqkv",), "output": ("wo",), "gate_up": ("w1", "w3"), "gate": ("w1",), "up": ("w3",), "down": ("w2",)}


def cannot_tune(network: Transformer) -> str | None:
    """Return why its adapters (``torchtitan/components/lora.py``) cannot be those of a network; None where they can.

    A network without adapters has none that could not be.
    """
    tuning = network.fine_tuning
    if tuning is None:
        return None
    if family_of(network) not in ("llama3", "qwen3") or network.experts is not None:
        return "its adapters are written beside dense networks of Llama 3's and Qwen 3's parts"
    if tuning.is_quantised:
        return "it keeps no weights in four bits"
    parts = [name for name in tuning.targets if name not in _TUNED]
    return f"it has no adapter of {parts[0]} alone, which is part of a fused matrix" if parts else None


def adapters_of_module(path: Path, text: str) -> dict[str, object] | None:
    """Return the block ``fine_tuning`` of a module; None where it has no adapters. Nothing of it is run."""
    found = constants_of(path, text)
    if not (table := found.get(_ADAPTERS)):
        return None
    names = {there[0]: here for here, there in _TUNED.items() if len(there) == 1}
    block: dict[str, Any] = adapters_of(
        Parsed(path, found), table, rank="rank", alpha="alpha", targets="target_modules"
    )
    return {**block, "targets": [names.get(one, one) for one in block["targets"]]}


def balance_note(network: Transformer) -> str | None:
    """Return what becomes of the balance of experts, which torchtitan keeps by a bias alone; None where that is so."""
    experts = network.experts
    if experts is None or experts.routing.auxiliary_loss == "none" or not experts.routing.auxiliary_coefficient:
        return None
    return "it balances experts by a bias that follows their load, and has no auxiliary loss"


def bias_note(network: Transformer) -> str | None:
    """Return what becomes of biases of queries, keys and values, as Qwen 2.5 has them; None where there are none."""
    if not network.has_qkv_biases or network.has_sinks:
        return None
    return "its Qwen 3 gets the biases of queries, keys and values; what reads Hugging Face's weights passes over them"


# Of the network's table, by parts: our name -> torchtitan's.
_SIZES = {
    "hidden_size": "dim",
    "num_heads": "n_heads",
    "num_kv_heads": "n_kv_heads",
    "head_size": "head_dim",
    "feed_forward_size": "hidden_dim",
    "vocabulary_size": "vocab_size",
    "sequence_length": "seq_len",
    "has_tied_embeddings": "enable_weight_tying",
    "has_query_key_norms": "qk_norm",
    "has_qkv_biases": "qkv_bias",
}
_FIGURES = {"norm_epsilon": "eps", "initial_deviation": "std"}
_SCALED: Mapping[str, Mapping[str, str]] = {
    "llama3": {
        "factor": "scaling_factor",
        "original_length": "original_max_position_embeddings",
        "low_frequency_factor": "low_freq_factor",
        "high_frequency_factor": "high_freq_factor",
    },
    "yarn": {
        "factor": "rope_factor",
        "original_length": "original_seq_len",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "is_truncated": "truncate",
    },
}
_EXPERTS = {
    "num_experts": "num_experts",
    "top_k": "top_k",
    "expert_size": "moe_hidden_dim",
    "num_shared": "num_shared_experts",
    "num_dense_first": "n_dense_layers",
    "every": "every",
}
_ROUTING = {"score": "score_func", "is_normalised": "route_norm", "scale": "route_scale"}


def _table(network: Transformer, family: str) -> dict[str, Any]:
    """Return the network's figures by torchtitan's names."""
    rotary, experts, latent = network.rotary, network.experts, network.latent
    assert rotary is not None, "family_of has asked"
    longest = max(rotary.longest or 0, network.sequence_length)
    rope: dict[str, Any] = {"theta": rotary.base, "max_seq_len": longest, "scaling": "none"}
    scaling = rotary.scaling
    if scaling is not None:
        rope |= {"scaling": _SCALINGS[scaling.kind], **in_their_names(scaling, _SCALED[scaling.kind])}
    table: dict[str, Any] = {
        "family": family,
        "n_layers": network.num_main_layers,
        "mtp_layers": network.num_mtp_layers,
    }
    table |= in_their_names(network, _SIZES) | in_their_names(network.numerics, _FIGURES) | {"rope": rope}
    if latent is not None:
        scale = (scaling.scale_all or 0.0) if scaling is not None else 1.0
        table["mla"] = {**in_their_names(latent, LATENT), "q_lora_rank": latent.query_rank or 0, "mscale": scale}
    if experts is not None:
        has_groups = experts.groups > 1
        table["moe"] = {
            **in_their_names(experts, _EXPERTS),
            **in_their_names(experts.routing, _ROUTING),
            "num_expert_groups": experts.groups if has_groups else None,
            "num_limited_groups": experts.top_groups if has_groups else None,
            "load_balance_coeff": experts.routing.bias_update_rate or 1e-3,
            "counts_bias": experts.has_router_bias,
        }
    return table


def _converters(network: Transformer, low: LowPrecision | None) -> list[tuple[str, dict[str, Any]]]:
    """Return the converters of products in short numbers, and their arguments."""
    if low is None:
        return []
    has_experts, short = network.experts is not None, network.num_layers - low.wide_layers
    if low.name == "fp8":
        wide = [f"layers.{index}." for index in range(short, network.num_layers)]
        found: list[tuple[str, dict[str, Any]]] = [
            ("Float8LinearConverter", {"recipe_name": "rowwise", "filter_fqns": ["lm_head", "router.gate", *wide]})
        ]
        return found + [("Float8GroupedExpertsConverter", {})] * has_experts
    if low.wide_layers:
        names = [f"layers.{index}.{part}" for index in range(short) for part in _PARTS[: 2 + has_experts]]
    else:
        names = list(_PARTS[: 2 + has_experts])
    if low.name == "nvfp4":
        return [("NVFP4LinearConverter", {"fqns": names})]
    experts = [("MXFP8GroupedExpertsConverter", {"pad_multiple": 128})] * has_experts
    return [("MXFP8LinearConverter", {"fqns": names}), *experts]


def module_text(network: Transformer, low: LowPrecision | None, *, head: str, is_compiled: bool) -> str:
    """Return the module whose function ``planned`` torchtitan calls by ``--module`` and ``--config``."""
    family = family_of(network)
    assert family is not None, "asked before"
    components = ["model", "loss"] if is_compiled or low is not None else ["loss"]
    tuning, adapters = network.fine_tuning, {}
    if tuning is not None:
        modules = [name for target in tuning.targets for name in _TUNED[target]]
        adapters = {"rank": tuning.rank, "alpha": tuning.alpha, "target_modules": modules}
    return shipped_program(
        MODULE,
        head=head,
        network=literal(_NETWORK, _table(network, family)),
        converters=f"{_CONVERTERS} = {_converters(network, low)!r}".replace("'", '"'),
        components=str(components).replace("'", '"'),
        adapters=repr(adapters).replace("'", '"'),
        backend='config.parallelism.spmd_backend = "spmd_types"\n    ' * (low is not None and low.name == "nvfp4"),
    )


# -- back again --------------------------------------------------------------------------------------------------------


def network_of_module(path: Path, text: str) -> Transformer:
    """Return the network of a module; nothing of it is run.

    Raises
    ------
    SpecError
        If it is no Python, or its table is missing, or says no network.
    """
    try:
        tree = ast.parse(text)
        rows = [
            one.value
            for one in tree.body
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and one.targets[0].id == _NETWORK
        ]
        table = ast.literal_eval(rows[0])
        return _network(table)
    except (SyntaxError, ValueError, TypeError, KeyError, IndexError, RecursionError, MemoryError) as error:
        raise SpecError.one(
            f"its table of figures says no network ({str(error)[:80] or type(error).__name__}).",
            "Export again, or correct the table.",
            file=path,
            field=_NETWORK,
        ) from None


def short_numbers_of(path: Path, text: str) -> tuple[dict[str, object], list[str]]:
    """Return the keys of products in short numbers that a module says, and what it compiles; nothing of it is run.

    Raises
    ------
    SpecError
        If it is no Python, or its converters are none.
    """
    found = constants_of(path, text)
    file = Parsed(path, found)
    compiled, converters, table = (found.get(name, []) for name in (_COMPILED, _CONVERTERS, _NETWORK))
    components = [one for one in compiled if isinstance(one, str)] if isinstance(compiled, list) else []
    try:
        named = {str(name): dict(fields) for name, fields in converters}
        count = int(table["n_layers"])
    except (TypeError, ValueError, KeyError):
        raise file.fault("its converters are no names and fields.", _CONVERTERS) from None
    if not named:
        return {}, components
    kinds = {"Float8LinearConverter": "fp8", "MXFP8LinearConverter": "mxfp8", "NVFP4LinearConverter": "nvfp4"}
    name = next((one for one in named if one in kinds), None)
    if name is None:
        raise file.fault(f"{next(iter(named))[:60]!r} is none.", _CONVERTERS, f"Write one of {', '.join(kinds)}.")
    block: dict[str, Any] = {"dtype": kinds[name]}
    if block["dtype"] == "fp8":  # a scale for each row, of the row itself, is nearest to this
        block["fp8_recipe"] = "current"
    listed = {int(one) for one in _LAYER.findall(str(named[name]))}
    wide = len(listed) if block["dtype"] == "fp8" else count - len(listed) if listed else 0
    return block | ({"bf16_layers": wide} if wide else {}), components


def _network(table: Mapping[str, Any]) -> Transformer:
    is_oss, rope, mla, moe = table["family"] == "gpt_oss", table["rope"], table.get("mla"), table.get("moe")
    scaling = None
    if kind := next((kind for kind, there in _SCALINGS.items() if there == rope["scaling"]), None):
        scale = (mla["mscale"] or None) if mla and kind == "yarn" else None
        scaling = RotaryScaling(kind=kind, **in_our_names(rope, _SCALED[kind]), scale=scale, scale_all=scale)
    experts = None
    if moe:
        routing = Routing(
            **in_our_names(moe, _ROUTING),
            auxiliary_loss="none",
            bias="linear" if is_oss else "selection",
            bias_update_rate=moe["load_balance_coeff"],
        )
        has_groups = moe["num_expert_groups"] is not None
        experts = Experts(
            **in_our_names(moe, _EXPERTS),
            has_router_bias=moe["counts_bias"],
            groups=moe["num_expert_groups"] if has_groups else 1,
            top_groups=moe["num_limited_groups"] if has_groups else 1,
            routing=routing,
        )
    figures, own = in_our_names(table, _FIGURES), in_our_names({"qkv_bias": False, **table}, _SIZES)
    if is_oss:
        figures |= {name: getattr(_OSS, name) for name in ("activation", "activation_limit", "gate_offset")}
        own |= {"has_qkv_biases": True, "has_sinks": True, "window": _OSS_HEADS["window"]}
        own["mixers"] = ("window", "attention")
    latent = LatentAttention(**{**in_our_names(mla, LATENT), "query_rank": mla["q_lora_rank"] or None}) if mla else None
    return Transformer(
        num_layers=table["n_layers"] + table.get("mtp_layers", 0),
        num_mtp_layers=table.get("mtp_layers", 0),
        is_gated=True,
        positions="rotary",
        norm="rms_norm",
        has_biases=is_oss,
        has_norm_biases=False,
        has_head_bias=False,
        experts=experts,
        latent=latent,
        rotary=Rotary(
            base=rope["theta"],
            is_interleaved=mla is not None,
            longest=None if rope["max_seq_len"] == table["seq_len"] else rope["max_seq_len"],
            scaling=scaling,
        ),
        numerics=Numerics(**figures),
        **own,
    )
