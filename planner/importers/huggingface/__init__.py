"""The ``config.json`` of a Hugging Face checkpoint, read without their library: plain JSON, a reader an architecture.

Parameters are counted from the sizes in it and equal those of ``transformers``; which keys an architecture has, and
what a missing one means, stands in :mod:`.architectures`. What is not counted is refused or noted.

Architectures that only ``transformers`` knows are read by its configuration classes, which run without torch and give
the canonical names of sizes. Which norms, biases and gates there are they do not say: a plain decoder is assumed,
loudly, and refused where a sign speaks against it. Where torch is installed too, the library builds the network without
memory, and another number of parameters refuses it. That takes seconds, where a reader of our own takes a millisecond.
"""

import csv
import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from io import StringIO
from operator import eq
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError
from planner.frozen import frozen
from planner.importers.huggingface.architectures import READERS
from planner.importers.huggingface.configuration import (
    OTHER_WAYS,
    SEEING,
    Fields,
    check_is_network,
    numerics_of,
    read_config,
    refusal,
    rotary_of,
    routing_of,
    text_of,
)
from planner.importers.huggingface.drafts import Draft
from planner.shipped import shipped_text
from planner.transformer import Transformer
from planner.words import shown

__all__ = ["HuggingFaceNetwork", "read_huggingface"]

_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_DEFAULT_TOKENS = 4096  # of a sample, where the configuration allows more: few train on the longest that it names
_UNKNOWN_TOKENS = 2048
_PREDICTING = ("num_nextn_predict_layers", "num_mtp_modules")  # layers that predict further tokens; MiniMax's name last


@frozen
class HuggingFaceNetwork:
    """A transformer from a configuration."""

    transformer: Transformer
    name: str  # of the checkpoint where the configuration says it, else of the folder or file
    dtype: str | None = None  # ``fp32``, ``fp16`` or ``bf16``, as its weights are stored; None where it does not say
    notes: tuple[str, ...] = ()  # what was assumed
    warnings: tuple[str, ...] = ()  # what makes the figures doubtful


def read_huggingface(
    path: Path, *, sequence_length: int | None = None, is_text_only: bool = False
) -> HuggingFaceNetwork:
    """Return the network of a ``config.json``, or of the folder that it stands in.

    Parameters
    ----------
    sequence_length
        Tokens of a sample; by default the longest that the configuration names, but at most 4096.
    is_text_only
        Take the ``text_config`` of a network of several parts, which is refused otherwise.

    Raises
    ------
    SpecError
        With file, line and key of everything that is wrong with it, in one pass; if the architecture is not known, or
        known and not counted, with the reason.
    """
    values, text, file = read_config(path)
    check_is_network(values, file)
    if isinstance(
        thinker := values.get("thinker_config"), Mapping
    ):  # the part of Qwen's Omni that reads and writes text
        values = {**thinker, **values}
    part = values.get("text_config")
    if is_text_only and isinstance(part, Mapping):
        kept = ("tie_word_embeddings", "torch_dtype", "dtype")
        values = {**{key: value for key, value in values.items() if key in kept}, **part}
    fields = Fields(values, text, file, _model_type(values, text, file))
    if fields.architecture in SEEING and isinstance(values.get("vision_config"), Mapping):
        return _seeing(fields, sequence_length)
    if is_text_only and isinstance(part, Mapping):
        _add_left_out(fields)
    _check_counted(fields, values)
    reader = READERS.get(fields.architecture, _plain_decoder)
    return _built(fields, reader(fields), sequence_length)


# Sizes that the published configurations of networks of several parts leave out of their text part, since the library
# has them (``configuration_gemma3.py``; of LLaVA ``configuration_llama.py``).
_LEFT_OUT = {
    "llava llama": {
        **{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11_008},
        "max_position_embeddings": 2048,
    },
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208},
}


def _seeing(whole: Fields, sequence_length: int | None) -> HuggingFaceNetwork:
    """Return the network of a file with an encoder of images and a decoder.

    Raises
    ------
    SpecError
        With what is wrong with either part; if the decoder is none that is read, or they do not go together.
    """
    text = text_of(whole.values)
    fields = Fields(text, whole.text, whole.file, _model_type(text, whole.text, whole.file))
    if fields.architecture not in READERS:
        raise _not_counted(whole, f"nothing is known of its text part {fields.architecture!r}", OTHER_WAYS)
    _add_left_out(fields, f"{whole.architecture} " * (whole.architecture == "llava"))
    decoder = _built(fields, replace(READERS[fields.architecture](fields), kind="decoder"), sequence_length)
    given = whole.values["vision_config"]
    vision = Fields(given, whole.text, whole.file, f"the vision_config of {whole.architecture}")
    sizes = SEEING[whole.architecture](whole, vision, decoder.transformer.hidden_size)
    if faults := [*whole.faults, *vision.faults]:
        raise SpecError.of(dict.fromkeys(faults))
    plain: dict[str, Any] = {"vocabulary_size": 0, "is_causal": False, "head": "projector"}
    try:
        tokens = sizes["image"].num_tokens
        encoder = Transformer(**plain, **sizes, has_tied_embeddings=False, sequence_length=tokens)
        transformer = replace(decoder.transformer, encoder=encoder, num_images=1)
    except ValueError as error:
        raise SpecError.one(f"{whole.architecture}: {error}", file=whole.file) from None
    tokens = transformer.num_image_tokens
    notes = (
        *decoder.notes,
        *whole.notes,
        f"one image a sample, {tokens:,} of its tokens; dnn.encoder.images says more",
    )
    left_out = "architectures is missing"
    return replace(
        decoder,
        transformer=transformer,
        name=_name(whole),
        notes=tuple(one for one in notes if not one.startswith(left_out)),
    )


def _add_left_out(fields: Fields, owner: str = "") -> None:
    """Add to a text part what its publisher leaves to the library, and say so."""
    for name, value in _LEFT_OUT.get(f"{owner}{fields.architecture}", {}).items():
        if fields.get(name) is None:
            fields.values = {**fields.values, name: value}
            fields.notes.append(f"{name}: {value:,}, as transformers has it where it is left out")


# What a publisher's own code calls what transformers has by another name: ``model_type`` in
# ``configuration_minimax_text_01.py`` and ``configuration_minimax_m1.py`` of huggingface.co/MiniMaxAI, and
# ``configuration_hunyuan.py`` of huggingface.co/tencent.
_OF_PUBLISHERS = dict.fromkeys(("minimax_text_01", "minimax_m1"), "minimax") | {"hunyuan": "hunyuan_v1_moe"}


def _model_type(values: Mapping[str, Any], text: str, file: Path) -> str:
    """Return the architecture's name."""
    given = values.get("model_type")
    if isinstance(given, str) and given and given.isprintable() and len(given) <= 80:
        return _OF_PUBLISHERS.get(given, given)
    if "model_type" in values:
        raise refusal(file, text, "", f"{shown(given)} is no name of an architecture.", 'Write e.g. "llama".')
    names = values.get("architectures")
    first = str(names[0]) if isinstance(names, list) and names else ""
    example = next((one for one in READERS if first.lower().startswith(re.sub(r"[-_]", "", one) + "for")), "llama")
    hint = f'Add it, as the checkpoint\'s own config.json has it, e.g. "model_type": "{example}".'
    raise refusal(file, text, "", "it is missing, so that the architecture is not known.", hint)


def _built(fields: Fields, draft: Draft, sequence_length: int | None) -> HuggingFaceNetwork:
    """Return the network of a draft, or refuse all that was found wrong."""
    if fields.values.get("pruned_heads"):
        fields.refuse("pruned_heads", "heads that were cut off are not counted here.")
    sizes = {**draft.sizes, **_head(fields, draft)}
    if draft.kind != "image":
        sizes["sequence_length"] = _length(fields, draft, sequence_length)
        _add_mixers(fields, draft, sizes)
    elif sequence_length is not None:
        problem = "the length of an image's sequence follows from its patches."
        fault = Fault(file=str(fields.file), field="sequence_length", problem=problem, mend="Leave it out.")
        fields.faults.append(fault)
    dtype = fields.word("dtype", "torch_dtype").removeprefix("torch.")
    if dtype and dtype not in _DTYPES:
        fields.notes.append(f"the weights are stored as {shown(dtype)}, which no training here is in")
    _add_numerics(fields, sizes)
    if fields.faults:
        raise SpecError.of(dict.fromkeys(fields.faults))
    try:
        transformer = Transformer(**sizes)
    except ValueError as error:
        raise SpecError.one(f"{fields.architecture}: {error}", file=fields.file) from None
    if draft.expected_parameters is not None:
        plain = Transformer(**{**draft.sizes, "head": "language", "sequence_length": transformer.sequence_length})
        if plain.num_parameters != draft.expected_parameters:
            counts = f"{plain.num_parameters:,} parameters, and transformers builds {draft.expected_parameters:,}"
            raise _not_counted(fields, f"a plain decoder of its sizes has {counts}", OTHER_WAYS)
    _note(fields)
    return HuggingFaceNetwork(
        transformer=transformer,
        name=_name(fields),
        dtype=_DTYPES.get(dtype),
        notes=tuple(fields.notes),
        warnings=tuple(fields.warnings),
    )


def _add_numerics(fields: Fields, sizes: dict[str, Any]) -> None:
    """Add what costs nothing: figures and functions, the angles of positions, the router's ways."""
    sizes["numerics"] = numerics_of(fields, sizes)
    if sizes.get("positions") == "rotary":
        head_size = sizes.get("head_size") or sizes["hidden_size"] // sizes["num_heads"]
        sizes["rotary"] = rotary_of(fields, head_size=max(head_size, 1))  # a faulty one may be 0
    if sizes.get("experts") is not None:
        sizes["experts"] = replace(sizes["experts"], routing=routing_of(fields))


def _add_mixers(fields: Fields, draft: Draft, sizes: dict[str, Any]) -> None:
    """Add what mixes the tokens of the layers, where not all have full attention; a long window is none."""
    mixers = draft.mixers
    if draft.window is not None and draft.window > sizes["sequence_length"]:
        fields.notes.append(f"windows of {draft.window:,} tokens hold whole samples: attention is full")
        mixers = tuple("attention" if one == "window" else one for one in mixers)
    if set(mixers) <= {"attention"}:
        sizes.pop("has_chunked_windows", None)
        return
    size = next(size for size in range(1, len(mixers) + 1) if all(map(eq, mixers[size:], mixers)))
    sizes["mixers"] = mixers[:size]
    if "window" in mixers:
        sizes["window"] = draft.window


def _note(fields: Fields) -> None:
    """Say what is counted otherwise than the configuration has it."""
    quantised = fields.values.get("quantization_config")
    if isinstance(quantised, Mapping):
        method = quantised.get("quant_method")
        how = f" ({method})" if isinstance(method, str) and method.isidentifier() else ""
        fields.notes.append(f"the checkpoint is quantised{how}: its parameters are counted as they were before")
    name = next((one for one in _PREDICTING if one in fields.values), "")
    more = fields.values.get(name)
    if type(more) is int and more > 0 and fields.flag("use_mtp", True):
        told = f"the {more} layers" if more > 1 else "the layer"
        verb = "predict" if more > 1 else "predicts"
        are = "are" if more > 1 else "is"
        fields.notes.append(
            f"{told} that {verb} further tokens ({name}) {are} not counted; dnn.mtp_layers: {more} does"
        )


def _name(fields: Fields) -> str:
    given = fields.values.get("_name_or_path")
    file = fields.file
    plain = file.parent.name if file.name == "config.json" else file.stem
    for one in (given.rstrip("/").rsplit("/", 1)[-1] if isinstance(given, str) else "", plain, fields.architecture):
        if found := re.sub(r"[^\w.-]+", "-", one).strip("-.")[:80]:
            return found
    return "network"


# -- head and length -------------------------------------------------------------------------------------------------

_HEADS_COUNTED = {
    "decoder": "with logits of every token, as for language modelling",
    "encoder": "with logits of every token, as for masked language modelling",
    "image": "with the classifier of images",
}


def _head(fields: Fields, draft: Draft) -> dict[str, Any]:
    """Return the fields of a transformer that the class of the checkpoint decides: its head and its pooler."""
    names = fields.words("architectures")
    if len(names) > 1:
        fields.notes.append(f"architectures names {len(names)} classes; the first, {names[0][:80]}, is counted")
    if strange := [one for one in names if not one.isidentifier()]:
        fields.fault("architectures", f"{shown(strange[0])} is no name of a class.", 'Write e.g. ["LlamaForCausalLM"].')
        return {}
    name = names[0] if names else ""
    if not name:
        fields.notes.append(f"architectures is missing: counted {_HEADS_COUNTED[draft.kind]}")
    is_language = not name or name.endswith(("ForCausalLM", "LMHeadModel"))
    if draft.kind == "decoder" and is_language:
        return {"head": "language"}
    if draft.kind == "image" and (not name or name.endswith("ForImageClassification")):
        return {"head": "classes"}
    if draft.kind == "encoder":
        is_masked, is_pretraining = is_language or name.endswith("ForMaskedLM"), name.endswith("ForPreTraining")
        is_untied = not draft.sizes.get("has_tied_embeddings", True)
        if is_untied and draft.pools and (is_masked or is_pretraining):
            note = "transformers holds the bias of the logits twice where they are not tied; it counts once"
            fields.notes.append(note)
        if is_masked:
            return {"head": "masked_language"}
        if is_pretraining and draft.pools:
            return {"head": "masked_language", "has_pooler": True}
    pools = draft.pools
    if not name.endswith("Model"):
        warning = f"the head of {name[:80]} is not counted: the network ends with its last block and norm"
        fields.warnings.append(warning)
        is_pooled = name.endswith(("Classification", "MultipleChoice")) and not name.endswith("TokenClassification")
        pools = pools and fields.architecture == "bert" and is_pooled
    tied = {} if draft.kind == "image" else {"has_tied_embeddings": True}
    return {"head": "none", **tied, "has_pooler": pools}


def _length(fields: Fields, draft: Draft, asked: int | None) -> int:
    """Return the tokens of a sample, of a network that reads text: as asked for, else what is usual."""
    longest, is_learned = draft.longest, draft.sizes.get("positions", "learned") == "learned"
    if asked is None:
        if longest is None:
            fields.notes.append(f"sequence_length: {_UNKNOWN_TOKENS}; the configuration names no length")
            return _UNKNOWN_TOKENS
        found = min(longest, _DEFAULT_TOKENS)
        what = "the longest that the configuration names" if found == longest else f"of up to {longest:,} allowed"
        fields.notes.append(f"sequence_length: {found:,}, {what}")
        return found
    if longest is not None and asked > longest:
        if is_learned:
            problem = f"a sample of {shown(asked)} tokens needs more learned positions than the table has: {longest:,}."
            hint = f"Ask for at most {longest}."
            fields.faults.append(Fault(file=str(fields.file), field="sequence_length", problem=problem, mend=hint))
            return longest
        fields.notes.append(f"samples of {asked:,} tokens are longer than the {longest:,} that the configuration names")
    return asked


# -- what is known and not counted -------------------------------------------------------------------------------------

_PARTS = ("vision_config", "audio_config", "speech_config", "image_config", "video_config", "encoder", "decoder")


@cache
def _reasons() -> Mapping[str, str]:
    """Return why architectures are not counted, by their ``model_type``."""
    text = shipped_text("planner.importers.huggingface", "not_counted.csv")
    return {name: row["reason"] for row in csv.DictReader(StringIO(text)) for name in row["model_types"].split()}


def _not_counted(fields: Fields, reason: str, hint: str) -> SpecError:
    """Return the error of an architecture that is not counted."""
    problem = f"{fields.architecture!r} is not counted: {reason}."
    return refusal(fields.file, fields.text, fields.architecture, problem, hint)


def _check_counted(fields: Fields, values: Mapping[str, Any]) -> None:
    """Refuse a configuration that is not counted, with the reason and what to do."""
    if values.get("is_encoder_decoder") is True:
        raise _not_counted(fields, _reasons()["encoder-decoder"], OTHER_WAYS)
    if fields.architecture in _reasons():
        raise _not_counted(fields, _reasons()[fields.architecture], OTHER_WAYS)
    parts = [name for name in _PARTS if isinstance(values.get(name), Mapping)]
    text = values.get("text_config")
    if isinstance(text, Mapping) and (parts or "hidden_size" not in values):
        with_parts = f" beside {' and '.join(parts)}" if parts else ""
        reason = f"it has several parts: text_config{with_parts}; only one stack of blocks is counted"
        kind = text.get("model_type")
        named = f" (model_type {kind!r})" if isinstance(kind, str) and kind.isprintable() and len(kind) <= 80 else ""
        if isinstance(kind, str) and kind in _reasons():
            raise _not_counted(
                fields, f"{reason}, and its text part{named} is not, either: {_reasons()[kind]}", OTHER_WAYS
            )
        hint = f"For its text part{named} alone write dnn.text_only: true, or import with --text-only."
        raise _not_counted(fields, reason, hint)
    if parts:
        reason = f"it has several parts: {' and '.join(parts)}; only one stack of blocks is counted"
        raise _not_counted(fields, reason, OTHER_WAYS)


# -- architectures that only the library knows -------------------------------------------------------------------------

# Names in which sizes hide that a plain decoder has not.
_SIGNS = re.compile(
    r"expert|moe|mamba|ssm|conv_|lora_rank|recurrent|linear_num|linear_key|rwkv|kernel|latent|vision|audio|image|sinks"
    r"|cross_attention_layers|num_codebooks|encoder_layers|embedding_size|word_embed_proj|altup|laurel|per_layer"
)
_ROTARY = {"rope_theta", "rope_parameters", "rope_scaling"}
_GATES = ("silu", "swish", "gelu_pytorch_tanh")
_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size")


def _plain_decoder(fields: Fields) -> Draft:
    """Return a plain decoder of the sizes that the library reads from a configuration.

    Raises
    ------
    SpecError
        If the library is missing or does not know the architecture, or if it is no plain decoder.
    """
    values = _canonical(fields)
    _check_counted(fields, values)
    if signs := _signs(values):
        reason = f"{signs[0]} is no part of a plain decoder, and what it does is not known here"
        raise _not_counted(fields, reason, OTHER_WAYS)
    causal = import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if fields.architecture not in causal:
        reason = "it is no decoder of language, and nothing is known of its head"
        raise _not_counted(fields, reason, OTHER_WAYS)
    if missing := [name for name in _SIZES if type(values.get(name)) is not int]:
        raise _not_counted(fields, f"it has no {' and no '.join(missing)}", OTHER_WAYS)
    expected = _built_parameters(fields, causal[fields.architecture])
    if expected is None and not ("rms_norm_eps" in values and _ROTARY.intersection(values)):
        reason = "without rotary positions and RMS norms it is open which biases and positions it has"
        hint = "Install torch: what transformers builds is then compared with a plain decoder."
        raise _not_counted(fields, reason, hint)
    return replace(_assumed(replace(fields, values=values)), expected_parameters=expected)


def _signs(values: Mapping[str, Any]) -> list[str]:
    """Return the keys that a plain decoder does not have."""
    return [name for name, value in values.items() if _SIGNS.search(name) and value not in (None, 0, False, [], {})]


def _config(fields: Fields) -> Any:
    """Return the library's configuration object."""
    given = {key: value for key, value in fields.values.items() if key != "model_type"}
    return import_module("transformers").CONFIG_MAPPING[fields.architecture](**given)


def _canonical(fields: Fields) -> dict[str, Any]:
    """Return the configuration as the library has it, under canonical names."""

    def refused(problem: str, hint: str) -> SpecError:
        return refusal(fields.file, fields.text, fields.architecture, problem, hint)

    near = difflib.get_close_matches(fields.architecture, READERS, n=1, cutoff=0.6)
    known = f" Nearest that is known without it: {near[0]!r}." if near else " docs/huggingface.md lists them."
    problem = f"{fields.architecture!r} is none of the {len(READERS)} architectures that are known here.{known}"
    try:
        mapping = import_module("transformers").CONFIG_MAPPING
    except ImportError:
        hint = "Check the name, or let transformers read it: pip install 'training-planner[hf]'"
        if signs := _signs(fields.values):  # which would be refused then, too
            hint = (
                f"Check the name. {OTHER_WAYS[:-1]}: a plain decoder, which transformers could tell, has no {signs[0]}."
            )
        raise refused(problem, hint) from None
    if fields.architecture not in mapping:
        raise refused(f"{problem} Nor does transformers know it.", "Check the name.")
    try:
        config = _config(fields)
        plain: Mapping[str, Any] = config.to_dict()
        names = {one: getattr(config, one, None) for one in (*_SIZES, "num_key_value_heads", "head_dim")}
    except Exception as error:  # a library of 800 classes, each with checks of its own
        told = ascii((str(error).strip() or type(error).__name__).splitlines()[0])[1:-1][:160]
        raise refused(f"transformers refuses it: {told}", "Mend the file.") from None
    return {**plain, **{name: value for name, value in names.items() if value is not None}}


def _built_parameters(fields: Fields, class_name: str) -> int | None:
    """Return the parameters of the network that the library builds on torch's meta device; None where it cannot."""
    try:
        torch = import_module("torch")
        with torch.device("meta"):
            network = getattr(import_module("transformers"), class_name)(_config(fields))
            network.tie_weights()
        return sum(int(one.numel()) for one in network.parameters())
    except Exception:  # torch is missing, or the network needs more than torch: nothing to compare with
        return None


def _assumed(fields: Fields) -> Draft:
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
    is_gated = is_rms and fields.word("hidden_act", "hidden_activation", "activation_function") in _GATES
    names = ("attention_bias", "qkv_bias", "use_qkv_bias")
    biases = [fields.flag(name, False) for name in names if name in fields.values]
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
    fields.warnings.append(
        f"{fields.architecture} is not known here: a plain decoder is ASSUMED of the sizes that transformers reads "
        f"({'RMS' if is_rms else 'layer'} norm before each half, feed-forward part {'' if is_gated else 'not '}gated, "
        f"rotary positions, {'tied' if sizes['has_tied_embeddings'] else 'separate'} logits). "
        f"Compare the parameters with published ones"
    )
    longest = fields.count_or(0, "max_position_embeddings", least=0, most=2**40)
    return Draft(sizes=sizes, longest=min(longest, 2**20) or None)
