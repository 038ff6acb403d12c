"""Architectures that only ``transformers`` knows, by its configuration classes; it runs without torch.

The library gives the canonical names of sizes, whatever the file calls them. Which norms, biases and gates there are
it does not say: a plain decoder is assumed, loudly, and refused where a sign speaks against it. Where torch is
installed too, the library builds the network without memory, and another number of parameters refuses it.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from planner.importers.huggingface.draft import Draft
from planner.importers.huggingface.fields import Fields
from planner.importers.huggingface.file import OTHER_WAYS, refusal
from planner.importers.huggingface.refused import reason_against

__all__ = ["generic_draft"]

# Names in which sizes hide that a plain decoder has not.
_SIGNS = re.compile(
    r"expert|moe|mamba|ssm|conv_|lora_rank|recurrent|linear_num|linear_key|rwkv|kernel|latent|vision|audio|image|sinks"
    r"|cross_attention_layers|num_codebooks|encoder_layers|embedding_size|word_embed_proj|altup|laurel|per_layer"
)
_ROTARY = frozenset({"rope_theta", "rope_parameters", "rope_scaling"})
_GATES = ("silu", "swish", "gelu_pytorch_tanh")
_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size")


def generic_draft(fields: Fields, near: str | None) -> Draft:
    """Return a plain decoder of the sizes that the library reads from a configuration.

    Parameters
    ----------
    near
        The name of an architecture that this package knows and that is spelled most like it.

    Raises
    ------
    SpecError
        If the library is missing or does not know the architecture, or if it is no plain decoder.
    """
    values = _canonical(fields, near)
    reason, mend = reason_against(fields.architecture, values)
    signs = [name for name, value in values.items() if _SIGNS.search(name) and value not in (None, 0, False, [], {})]
    if not reason and signs:
        reason, mend = f"{signs[0]} is no part of a plain decoder, and what it does is not known here", OTHER_WAYS
    if not reason and not _is_causal(fields.architecture):
        reason, mend = "it is no decoder of language, and nothing is known of its head", OTHER_WAYS
    missing = [name for name in _SIZES if type(values.get(name)) is not int]
    if not reason and missing:
        reason, mend = f"it has no {' and no '.join(missing)}", OTHER_WAYS
    if reason:
        raise refusal(
            fields.file, fields.text, fields.architecture, f"{fields.architecture!r} is not counted: {reason}.", mend
        )
    expected = _built_parameters(fields)
    if expected is None and not ("rms_norm_eps" in values and _ROTARY.intersection(values)):
        reason = "without rotary positions and RMS norms it is open which biases and positions it has"
        mend = "Install torch: what transformers builds is then compared with a plain decoder."
        raise refusal(
            fields.file, fields.text, fields.architecture, f"{fields.architecture!r} is not counted: {reason}.", mend
        )
    own = Fields(values, fields.text, fields.file, fields.architecture, fields.faults, fields.notes, fields.warnings)
    return replace(_plain(own), expected_parameters=expected)


def _canonical(fields: Fields, near: str | None) -> dict[str, Any]:
    """Return the configuration as the library has it, under canonical names."""
    hint = f" Nearest that is known without it: {near!r}." if near else ""
    problem = f"{fields.architecture!r} is none of the architectures that are known here.{hint}"
    try:
        mapping = import_module("transformers").CONFIG_MAPPING
    except ImportError:
        mend = "Check the name, or let transformers read it: pip install 'training-planner[hf]'"
        raise refusal(fields.file, fields.text, fields.architecture, problem, mend) from None
    if fields.architecture not in mapping:
        raise refusal(
            fields.file,
            fields.text,
            fields.architecture,
            f"{problem} Nor does transformers know it.",
            "Check the name.",
        )
    try:
        config = mapping[fields.architecture](**_given(fields))
        plain: Mapping[str, Any] = config.to_dict()
        names = {one: getattr(config, one, None) for one in (*_SIZES, "num_key_value_heads", "head_dim")}
    except Exception as error:  # a library of 800 classes, each with checks of its own
        told = ascii((str(error).strip() or type(error).__name__).splitlines()[0])[1:-1][:160]
        raise refusal(
            fields.file, fields.text, fields.architecture, f"transformers refuses it: {told}", "Mend the file."
        ) from None
    return {**plain, **{name: value for name, value in names.items() if value is not None}}


def _is_causal(architecture: str) -> bool:
    """Whether the library has a decoder of language for an architecture."""
    names = import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return architecture in names


def _built_parameters(fields: Fields) -> int | None:
    """Return the parameters of the network that the library builds on torch's meta device; None where it cannot."""
    try:
        torch, library = import_module("torch"), import_module("transformers")
        names = import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        config = library.CONFIG_MAPPING[fields.architecture](**_given(fields))
        with torch.device("meta"):
            network = getattr(library, names[fields.architecture])(config)
            network.tie_weights()
        return sum(int(one.numel()) for one in network.parameters())
    except Exception:  # torch is missing, or the network needs more than torch: nothing to compare with
        return None


def _given(fields: Fields) -> dict[str, Any]:
    """Return the keys of the file but for the architecture."""
    return {key: value for key, value in fields.values.items() if key != "model_type"}


def _plain(fields: Fields) -> Draft:
    """Return a decoder with a norm before each half, rotary positions, and the flags that have a key."""
    sizes: dict[str, Any] = {
        "num_layers": fields.count("num_hidden_layers"),
        "hidden_size": fields.count("hidden_size"),
        "num_heads": fields.count("num_attention_heads"),
        "vocabulary_size": fields.count("vocab_size", most=2**40),
        "feed_forward_size": fields.count("intermediate_size"),
    }
    sizes["num_kv_heads"] = fields.count_or(sizes["num_heads"], "num_key_value_heads")
    if fields.get("head_dim") is not None:
        sizes["head_size"] = fields.count("head_dim")
    is_rms = any("rms" in name for name in fields.values)
    act = fields.word("hidden_act", "hidden_activation", "activation_function")
    biases = [
        fields.flag(name, False) for name in ("attention_bias", "qkv_bias", "use_qkv_bias") if name in fields.values
    ]
    is_gated = is_rms and act in _GATES
    sizes |= {
        "norm": "rms_norm" if is_rms else "layer_norm",
        "is_gated": is_gated,
        "has_biases": fields.flag("mlp_bias", fields.flag("use_bias", not is_rms)),
        "has_qkv_biases": any(biases) if biases else fields.flag("use_bias", not is_rms),
        "has_output_bias": fields.flag("attention_bias", fields.flag("use_bias", not is_rms)),
        "has_norm_biases": not is_rms,
        "positions": "rotary",
        "has_tied_embeddings": fields.flag("tie_word_embeddings", True),
    }
    sure = "gated" if is_gated else "not gated"
    compare = "Compare the parameters with published ones"
    fields.warnings.append(
        f"{fields.architecture} is not known here: a plain decoder is ASSUMED of the sizes that transformers reads "
        f"({'RMS' if is_rms else 'layer'} norm before each half, feed-forward part {sure}, rotary positions, "
        f"{'tied' if sizes['has_tied_embeddings'] else 'separate'} logits). {compare}"
    )
    longest = fields.count_or(0, "max_position_embeddings", least=0, most=2**40)
    return Draft(sizes=sizes, longest=min(longest, 2**20) or None)
