"""The file ``config.json`` of a Hugging Face checkpoint, told from the files beside it, and its keys, read one by one.

What is wrong with each key is collected, so that one pass names it all.

*Beside sizes*: angles of rotary positions, figures, activations, and the router. No count depends on them; launch files
do. Source, of what a missing key means, too: ``configuration_*.py`` and ``modeling_*.py`` of each architecture in
``huggingface/transformers`` 5.24; rates and weights of losses that no configuration names stand in the report that is
cited beside them.

*Vision-language models*: an encoder of images in front of a decoder, from both parts of a file. The decoder is read as
any other. Source of the encoders and of the projectors: ``configuration_*.py`` and ``modeling_*.py`` of ``llava``,
``gemma3``, ``qwen2_vl``, ``qwen2_5_vl``, ``clip`` and ``siglip`` in ``huggingface/transformers`` 5.23, against whose
own counts of parameters they are tested.
"""

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from planner.encoders import MOST_MERGED, Projector
from planner.errors import Fault, SpecError
from planner.importers.text import is_there, read_text, refuse
from planner.numerics import Activation, Numerics, Rotary, RotaryScaling, RotaryScalingKind, Routing
from planner.transformer_parts import (
    MOST_CHANNELS,
    MOST_FRAMES,
    MOST_HEADS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_PIXELS,
    MOST_WIDTH,
    Image,
)
from planner.words import shown

MOST_BYTES = 16 * 2**20  # the names of 21,843 classes are 1.5 MiB
_MOST_KEYS = 10_000
_NAME = "config.json"
OTHER_WAYS = "Describe the network under dnn.transformer, or import it from ONNX or torch."
_HINT = "Give the file config.json of a checkpoint, as it was saved."

# Keys that only this file has, what it is then, and what to name instead. The first that fits is said.
_OTHERS: tuple[tuple[set[str], str], ...] = (
    ({"peft_type"}, "the configuration of an adapter"),
    ({"weight_map"}, "the index of a checkpoint's weights"),
    ({"added_tokens", "model"}, "a tokenizer"),
    ({"tokenizer_class"}, "the configuration of a tokenizer"),
    ({"added_tokens_decoder"}, "the configuration of a tokenizer"),
    ({"model_max_length"}, "the configuration of a tokenizer"),
    ({"image_processor_type"}, "the configuration of an image processor"),
    ({"feature_extractor_type"}, "the configuration of a feature extractor"),
    ({"processor_class"}, "the configuration of a processor"),
    ({"_class_name"}, "a part of a diffusion pipeline"),
    ({"do_sample"}, "the configuration of text generation"),
    ({"max_new_tokens"}, "the configuration of text generation"),
    ({"_from_model_config"}, "the configuration of text generation"),
    ({"transformers_version", "eos_token_id"}, "the configuration of text generation"),
    ({"dim", "n_layers", "n_heads"}, "params.json, the configuration in the form of Meta's or Mistral's own code"),
    ({"zero_optimization"}, "the configuration of DeepSpeed"),
)


class _TwiceError(ValueError):
    """A key that stands twice in one object."""


def read_config(path: Path) -> tuple[dict[str, object], str, Path]:
    """Return the object of a file, its text, and the file: of a folder the ``config.json`` in it.

    Raises
    ------
    SpecError
        If there is no such file, if it is no JSON of one object, or too large.
    """
    file = path / _NAME if os.path.isdir(path) else path  # noqa: PTH112  # which takes a path of any length
    size = file.stat().st_size if is_there(file) else 0  # what is not there is said by what reads it
    if size > MOST_BYTES:
        raise refuse(file, f"it holds {size} bytes, more than {MOST_BYTES}.", f"Is it the right file? {_HINT}")
    text = read_text(file)
    try:
        values = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        problem = f"this is no JSON, or not all of it: {error.msg}."
        raise SpecError.one(problem, _HINT, file=file, line=error.lineno, column=error.colno) from None
    except _TwiceError as error:
        key = str(error)
        name = key if key.isprintable() and len(key) <= 80 else repr(key)[:80]
        problem = "this key stands twice."
        raise SpecError.one(problem, "Remove one.", file=file, line=_line_of(text, key), field=name) from None
    except (RecursionError, ValueError):
        raise refuse(file, "this JSON is nested too deeply, or holds a number of thousands of digits.", _HINT) from None
    if not isinstance(values, dict):
        kind = "a list" if isinstance(values, list) else "a single value"
        raise refuse(file, f"this is JSON, but {kind}, not an object of keys.", _HINT)
    if not values:
        raise refuse(file, "this object of JSON has no keys.", _HINT)
    if len(values) > _MOST_KEYS:
        raise refuse(file, f"this object of JSON has {len(values)} keys, more than {_MOST_KEYS}.", _HINT)
    return values, text, file


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; a key that stands twice would hide the first."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _TwiceError(key)
        found[key] = value
    return found


def _line_of(text: str, key: str) -> int | None:
    """Return the line on which a key first stands; None where it does not."""
    found = re.search(rf"{re.escape(json.dumps(key, ensure_ascii=False))}\s*:", text)
    return None if found is None else text.count("\n", 0, found.start()) + 1


def check_is_network(values: Mapping[str, object], file: Path) -> None:
    """Refuse the other files of a checkpoint, which say nothing of the network's sizes, by what they are.

    Raises
    ------
    SpecError
        That says which file it is, and which one to name.
    """
    what = next((what for keys, what in _OTHERS if keys <= values.keys()), None)
    if "model_type" in values or what is None:
        return
    hint = f"Give {_NAME}, which stands beside it." if file.name != _NAME else _HINT
    base = values.get("base_model_name_or_path")
    if isinstance(base, str) and base:
        hint = f"Give the config.json of the network that it adapts, {base[:80]!r}."
    raise refuse(file, f"this is {what}, not of a network.", hint)


def refusal(file: Path, text: str, model_type: str, problem: str, hint: str) -> SpecError:
    """Return the error of an architecture, at the line that names it."""
    line = _line_of(text, "model_type")
    return SpecError.one(problem, hint, file=file, line=line, field="model_type", value=model_type)


@dataclass(slots=True)
class Fields:
    """The keys of one configuration.

    A key that is ``null`` is left out. ``faults`` lists what was wrong with the keys that were read; where there is
    any, what the methods gave means nothing.
    """

    values: Mapping[str, Any]
    text: str
    file: Path
    architecture: str  # its ``model_type``, named by every message
    faults: list[Fault] = field(default_factory=list)
    # notes, warnings: what readers add for the user
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def get(self, *names: str) -> object:
        """Return the value of the first of these keys that has one; else None."""
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)

    def count(self, *names: str, least: int = 1, most: int = MOST_INNER) -> int:
        """Return a size that must be given, under any of these keys."""
        if self.get(*names) is None:
            also = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
            hint = "Add it, as the checkpoint's own config.json has it; a size is not guessed."
            self.fault(names[0], f"it is missing, and {self.architecture} needs it{also}.", hint)
        return self.count_or(max(least, 1), *names, least=least, most=most)

    def count_or(self, default: int, *names: str, least: int = 1, most: int = MOST_INNER) -> int:
        """Return a size that may be left out."""
        name = next((name for name in names if self.values.get(name) is not None), None)
        if name is None:
            return default
        value = self.values[name]
        if type(value) is int and least <= value <= most:
            return value
        if type(value) is int:
            problem = f"{value} is out of range" if abs(value) < 10**60 else "this number is out of range"
        else:
            problem = f"{shown(value)} {'is text, not a number' if isinstance(value, str) else 'is no whole number'}"
        self.fault(name, f"{problem}.", f"Write a whole number from {least} to {most}.")
        return max(least, 1)

    def figure(self, default: float | None, *names: str, most: float = 1e12) -> float | None:
        """Return a figure above 0 that may be left out; None where it is 0, which says that there is none."""
        name = next((name for name in names if self.values.get(name) is not None), None)
        if name is None:
            return default
        value = self.values[name]
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most:
            return float(value)
        if isinstance(value, bool) or value != 0:
            self.fault(
                name, f"{shown(value)} is no number that it can be.", f"Write a number above 0, at most {most:g}."
            )
        return None

    def flag(self, name: str, default: bool) -> bool:
        """Return whether something is so; may be left out."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            self.fault(name, f"{shown(value)} is neither true nor false.", "Write true or false, without quotes.")
        return value if isinstance(value, bool) else default

    def word(self, *names: str) -> str:
        """Return a word; empty where it is left out."""
        name = next((name for name in names if self.values.get(name) is not None), None)
        value = self.values[name] if name is not None else ""
        if name is not None and not isinstance(value, str):
            self.fault(name, f"{shown(value)} is no text.", "Write a word in quotes.")
        return value if isinstance(value, str) else ""

    def words(self, name: str) -> tuple[str, ...]:
        """Return a list of words; empty where it is left out."""
        value = self.get(name)
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return tuple(value)
        if value is not None:
            self.fault(name, f"{shown(value)} is no list of words.", 'Write e.g. ["full_attention"].')
        return ()

    def wholes(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers of 0 or more; empty where it is left out."""
        value = self.get(name)
        if isinstance(value, list) and all(type(one) is int and one >= 0 for one in value):
            return tuple(value)
        if value is not None:
            self.fault(name, f"{shown(value)} is no list of whole numbers.", "Write e.g. [0, 1].")
        return ()

    def refuse(self, name: str, problem: str) -> None:
        """Note a key that makes another network of this one than is counted here."""
        self.fault(name, problem, OTHER_WAYS)

    def fault(self, name: str, problem: str, hint: str) -> None:
        """Note what is wrong with a key."""
        is_there = name in self.values
        line = _line_of(self.text, name) if is_there else None
        value = shown(self.values[name]) if is_there else ""
        where = Fault(file=str(self.file), line=line, field=name, value=value, problem=problem, mend=hint)
        self.faults.append(where)


_BASES = {
    **dict.fromkeys(("cohere", "ernie4_5", "ernie4_5_moe", "llama4_text", "olmo3"), 5e5),
    **dict.fromkeys(("gemma3_text", "minimax", "mixtral", "phimoe", "solar_open"), 1e6),
    **dict.fromkeys(("qwen2_5_omni_text", "qwen3_omni_moe_text"), 1e6),
    "apertus": 1.2e7,
    "gpt_oss": 1.5e5,
    "hy_v3": 11_158_840.0,
    "minimax_m2": 5e6,
}
_FRACTIONS = {
    **dict.fromkeys(("bamba", "glm", "glm4", "glm4_moe", "nemotron", "phi"), 0.5),
    **dict.fromkeys(("gpt_neox", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "stablelm"), 0.25),
}
_INTERLEAVED = {"codegen", "cohere", "deepseek_v2", "deepseek_v3", "ernie4_5", "glm", "glm4", "gptj", "kimi_k2"} | {
    *("cohere2", "deepseek_v32", "ernie4_5_moe", "glm4_moe_lite", "glm_moe_dsa", "llama4_text", "mistral4")
}
_MOST_BASE = 1e12
_LOCAL_BASES = {"gemma3_text": 1e4}
_WITHOUT_EVERY = dict.fromkeys(("cohere2", "exaone4", "exaone_moe", "llama4_text", "smollm3"), 4)
_YARN_OF_GPT_OSS = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
_KINDS = get_args(RotaryScalingKind)
_PLAIN = ("default", "mrope", "proportional")
# What the text part is where a file of one level says nothing, or where its own name is none that is read.
TEXT_KINDS = {"qwen2_5_vl": "qwen2_5_vl_text", "qwen2_vl": "qwen2", "qwen2_vl_text": "qwen2", "gemma3": "gemma3_text"}
_PARTS = ("vision_config", "text_config", "architectures", "model_type")
_UNSEEN = 1008  # pixels of an image whose size no configuration names: Qwen's are of any


def text_of(values: Mapping[str, object]) -> dict[str, object]:
    """Return the configuration of the text part, be it a part of its own or all that is said beside the images."""
    part = values.get("text_config")
    kept = {key: values[key] for key in ("tie_word_embeddings", "torch_dtype", "dtype") if key in values}
    if isinstance(part, Mapping):
        found = {**kept, **part}
    else:
        found = {key: value for key, value in values.items() if key not in _PARTS}
        found["model_type"] = values["model_type"]
    kind = found.get("model_type", values["model_type"])
    found["model_type"] = TEXT_KINDS.get(kind, kind) if isinstance(kind, str) else kind
    found.pop("architectures", None)
    return found


def _image(vision: Fields, pixels: int, **more: Any) -> Image | None:
    """Return the images of an encoder; None where a key is faulty."""
    patch = vision.count("patch_size", most=MOST_PIXELS)
    channels = vision.count_or(3, "num_channels", "in_channels", "in_chans", most=MOST_CHANNELS)
    if vision.faults:
        return None
    if pixels % patch:
        vision.fault("patch_size", f"an image of {pixels} pixels has no whole number of these.", "Give a divisor.")
        return None
    return Image(image_size=pixels, patch_size=patch, num_channels=channels, **more)


def _tower(vision: Fields) -> dict[str, Any]:
    """Return the sizes of CLIP's encoder, or SigLIP's."""
    kind = vision.word("model_type")
    if kind not in ("clip_vision_model", "siglip_vision_model"):
        vision.refuse("model_type", "only the encoders clip_vision_model and siglip_vision_model are counted here.")
    is_clip = kind == "clip_vision_model"
    if not is_clip and vision.flag("vision_use_head", True):
        vision.refuse("vision_use_head", "a head that pools all patches is not counted here.")
    more = {"has_class_token": is_clip, "has_patch_bias": not is_clip}
    return {
        "num_layers": vision.count("num_hidden_layers", most=MOST_LAYERS),
        "hidden_size": vision.count("hidden_size", most=MOST_WIDTH),
        "num_heads": vision.count("num_attention_heads", most=MOST_HEADS),
        "feed_forward_size": vision.count("intermediate_size"),
        "has_embedding_norm": is_clip,
        "image": _image(vision, vision.count("image_size", most=MOST_PIXELS), **more),
    }


def _llava(whole: Fields, vision: Fields, width: int) -> dict[str, Any]:
    """Return LLaVA's: two products, without the token of the class."""
    sizes = _tower(vision)
    way = whole.word("vision_feature_select_strategy") or "default"
    image = sizes["image"]
    if image is not None and (way == "default") != image.has_class_token:
        whole.refuse("vision_feature_select_strategy", "another choice of tokens than all patches is not counted here.")
    if whole.get("vision_feature_layer") is not None and not isinstance(whole.get("vision_feature_layer"), int):
        whole.refuse("vision_feature_layer", "features of several layers are not counted here.")
    has_biases = whole.flag("multimodal_projector_bias", True)
    return {**sizes, "projector": Projector(output_size=width, hidden_size=width, has_biases=has_biases)}


def _gemma3(whole: Fields, vision: Fields, width: int) -> dict[str, Any]:
    """Return Gemma 3's: the mean of squares, a norm and one product."""
    sizes = _tower(vision)
    tokens, image = whole.count_or(256, "mm_tokens_per_image", most=2**20), sizes["image"]
    merge = 1
    if image is not None:
        side, rows = math.isqrt(tokens), image.image_size // image.patch_size
        merge = rows // max(side, 1)
        if side * side != tokens or side * merge != rows or merge > MOST_MERGED:
            problem = f"{tokens} tokens are no means of equal squares of {rows} x {rows} patches."
            whole.fault("mm_tokens_per_image", problem, "Write the square of a divisor.")
            merge = 1
    projector = Projector(output_size=width, merge=merge, is_pooled=True, norm="rms_norm", has_biases=False)
    return {**sizes, "projector": projector}


def _qwen(whole: Fields, vision: Fields, width: int) -> dict[str, Any]:
    """Return Qwen2-VL's and Qwen2.5-VL's, whose images are of any size, and videos of two frames a patch."""
    is_second = whole.architecture == "qwen2_vl"
    merge = vision.count_or(2, "spatial_merge_size", most=MOST_MERGED)
    frames = vision.count_or(2, "temporal_patch_size", most=MOST_FRAMES)
    patch = vision.count_or(14, "patch_size", "spatial_patch_size", most=MOST_PIXELS)
    own = vision.count_or(1280, "embed_dim" if is_second else "hidden_size", most=MOST_WIDTH)
    if vision.count_or(width, "hidden_size" if is_second else "out_hidden_size", most=MOST_WIDTH) != width:
        name = "hidden_size" if is_second else "out_hidden_size"
        vision.fault(name, f"the tokens of images are as wide as those of text, {width}.", f"Write {width}.")
    number = vision.count_or(32, "depth", most=MOST_LAYERS)
    pixels = _UNSEEN if _UNSEEN % (patch * merge) == 0 else max(1, _UNSEEN // (patch * merge)) * patch * merge
    more = {"has_class_token": False, "has_patch_bias": False, "frames_per_patch": frames}
    whole.notes.append(f"images of {pixels} x {pixels} pixels; dnn.encoder.image.size says others")
    patched = Fields({**vision.values, "patch_size": patch}, vision.text, vision.file, vision.architecture)
    sizes: dict[str, Any] = {
        "num_layers": number,
        "hidden_size": own,
        "num_heads": vision.count_or(16, "num_heads", most=MOST_HEADS),
        "positions": "rotary",
        "has_final_norm": False,
        "image": _image(patched, pixels, **more),
    }
    joined = own * merge**2
    if is_second:
        ratio = vision.figure(4.0, "mlp_ratio", most=64.0) or 4.0
        projector = Projector(output_size=width, hidden_size=joined, merge=merge, norm="layer_norm", is_norm_first=True)
        return {**sizes, "feed_forward_size": int(own * ratio), "projector": projector}
    sizes |= {
        "feed_forward_size": vision.count_or(3420, "intermediate_size"),
        "is_gated": True,
        "norm": "rms_norm",
        "has_norm_biases": False,
        **_windows(vision, number, patch, sizes["image"]),
    }
    projector = Projector(output_size=width, hidden_size=joined, merge=merge, norm="rms_norm", is_norm_first=True)
    return {**sizes, "projector": projector}


def _windows(vision: Fields, number: int, patch: int, image: Image | None) -> dict[str, Any]:
    """Return the layers with windows: all but those that are named."""
    window = vision.count_or(112, "window_size", most=MOST_PIXELS)
    named = vision.wholes("fullatt_block_indexes") or (7, 15, 23, 31)
    mixers = tuple("attention" if index in named else "window" for index in range(number))
    if image is None or "window" not in mixers:
        return {}
    if window % patch:
        vision.fault("window_size", f"{window} pixels are no whole number of patches of {patch}.", "Give a multiple.")
    tokens = min(max(window // patch, 1) ** 2, image.num_patches)
    size = next(size for size in range(1, number + 1) if mixers[size:] == mixers[: number - size])
    return {"mixers": mixers[:size], "window": tokens, "has_chunked_windows": True}


# Reader of an encoder: of the whole file, its part of images, and the width of the text part.
SEEING: Mapping[str, Callable[[Fields, Fields, int], dict[str, Any]]] = {
    "llava": _llava,
    "gemma3": _gemma3,
    "qwen2_vl": _qwen,
    "qwen2_5_vl": _qwen,
}


def rotary_of(fields: Fields, *, head_size: int) -> Rotary:
    """Return the rotary positions of an architecture that has them; the first faulty figure is noted."""
    name = fields.architecture
    whole = _table(fields, "rope_parameters")
    local = whole.get("sliding_attention")
    angles = whole.get("full_attention", whole)
    scaling = _table(fields, "rope_scaling") or (angles if isinstance(angles, Mapping) else {})
    if name == "gpt_oss" and not whole and not scaling:
        scaling = _YARN_OF_GPT_OSS
    base = _figure(fields, angles, "rope_theta") or fields.figure(
        _BASES.get(name, 1e4), "rope_theta", "rotary_emb_base", "global_rope_theta"
    )
    local_base = _figure(fields, local, "rope_theta") or fields.figure(_LOCAL_BASES.get(name), "rope_local_base_freq")
    fraction = _figure(fields, angles, "partial_rotary_factor")
    if fraction is None:
        turned = fields.figure(None, "rotary_dim")
        usual = _FRACTIONS.get(name, 1.0) if turned is None else turned / head_size
        fraction = fields.figure(usual, "partial_rotary_factor", "rotary_pct", most=1.0)
    longest = fields.count_or(0, "max_position_embeddings", "n_positions", most=2**40)
    alpha = _figure(fields, scaling, "alpha") if name.startswith("hunyuan") else None
    if alpha is not None and head_size > 2:  # a base that is larger from the start on, called dynamic
        base, scaling = float(round((base or 1e4) * alpha ** (head_size / (head_size - 2)))), {}
        if not 1 <= base <= _MOST_BASE:
            fields.fault("rope_theta", f"alpha makes a base of {base:g} of it.", "Check both: bases are 1 to 1e12.")
    if fields.faults:
        return Rotary()
    return Rotary(
        base=base or 1e4,
        local_base=local_base,
        fraction=min(fraction or 1.0, 1.0),
        is_interleaved=fields.flag("rope_interleave", name in _INTERLEAVED),
        without_every=_without_every(fields),
        longest=longest or None,
        scaling=_scaling(fields, scaling, longest),
    )


def _without_every(fields: Fields) -> int:
    """Return after how many layers one has no positions; 0 where all have, or where they follow no step."""
    usual = _WITHOUT_EVERY.get(fields.architecture)
    if usual is None:
        return 0
    if fields.architecture.startswith("exaone"):  # where windows are, what sees all has no positions
        pattern = fields.get("sliding_window_pattern")
        step = len(pattern) if isinstance(pattern, str) else fields.count_or(usual, "sliding_window_pattern")
        return step if fields.get("sliding_window") else 0
    named = fields.wholes("no_rope_layers")  # 1 where there are positions
    if not named:
        return fields.count_or(usual, "no_rope_layer_interval", "sliding_window_pattern")
    without = [index + 1 for index, has_positions in enumerate(named) if not has_positions]
    if not without:
        return 0
    if without != list(range(without[0], len(named) + 1, without[0])):
        fields.notes.append("layers without positions (no_rope_layers) follow no step, which launch files do not say")
        return 0
    return without[0]


def _scaling(fields: Fields, given: Mapping[str, Any], longest: int) -> RotaryScaling | None:
    """Return how angles are stretched; None where they are not."""
    kind = given.get("rope_type", given.get("type", "default"))
    if given.get("llama_4_scaling_beta"):
        fields.notes.append("queries grow with their position (llama_4_scaling_beta), which launch files do not say")
    if kind in _PLAIN:
        return None
    if kind not in _KINDS:
        fields.notes.append(f"rotary positions are scaled by {shown(kind)}, which launch files here do not say")
        return None
    keys = {
        "low_frequency_factor": "low_freq_factor",
        "high_frequency_factor": "high_freq_factor",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "scale": "mscale",
        "scale_all": "mscale_all_dim",
        "attention_factor": "attention_factor",
    }
    figures = {name: found for name, key in keys.items() if (found := _figure(fields, given, key)) is not None}
    factor = _figure(fields, given, "factor") or 1.0
    original = _figure(fields, given, "original_max_position_embeddings")
    if original is None and kind in ("llama3", "yarn"):
        original = longest
    if fields.faults:
        return None
    try:
        return RotaryScaling(
            kind=kind,
            factor=factor,
            original_length=int(original or 0) or None,
            is_truncated=given.get("truncate") is not False,
            **figures,
        )
    except ValueError as error:
        fields.fault("rope_scaling", f"{error}", "Write it as the checkpoint's own config.json has it.")
        return None


def _table(fields: Fields, name: str) -> Mapping[str, Any]:
    """Return a nested object; empty where it is left out."""
    value = fields.values.get(name)
    if value is not None and not isinstance(value, Mapping):
        fields.fault(name, f"{shown(value)} is no object.", 'Write e.g. {"rope_type": "linear", "factor": 2.0}.')
    return value if isinstance(value, Mapping) else {}


def _figure(fields: Fields, table: object, name: str) -> float | None:
    """Return a figure above 0 of a nested object; None where it is left out."""
    value = table.get(name) if isinstance(table, Mapping) else None
    if value is None or (value == 0 and not isinstance(value, bool)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST_BASE:
        key = "rope_scaling" if "rope_scaling" in fields.values else "rope_parameters"
        fields.fault(key, f"{name} is {shown(value)}, no number above 0.", "Write e.g. 8.0.")
        return None
    return float(value)


_ACTIVATIONS: dict[str, Activation] = {
    **dict.fromkeys(("silu", "swish"), "silu"),
    "gelu": "gelu",
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python_tanh"), "gelu_tanh"),
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    **dict.fromkeys(("relu2", "relu_squared"), "relu_squared"),
}
_USUAL: dict[str, Activation] = {
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), "gelu_tanh"),
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gpt_neo", "gptj", "codegen", "bloom", "phi", "starcoder2"), "gelu_tanh"),
    **dict.fromkeys(("arcee", "nemotron", "nemotron_h"), "relu_squared"),
    "opt": "relu",
    "gpt_oss": "quick_gelu",
}
_DEVIATIONS = {"nemotron": 0.0134, "starcoder2": 0.018042}
_GEMMAS = ("gemma", "gemma2", "gemma3_text")
_ENCODERS = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "vit")


def numerics_of(fields: Fields, sizes: Mapping[str, Any]) -> Numerics:
    """Return the figures of an architecture; ``sizes`` are the fields of its transformer."""
    name = fields.architecture
    usual_epsilon = 1e-12 if name in _ENCODERS else 1e-6 if sizes.get("norm") == "rms_norm" else 1e-5
    if name in (
        "apertus",
        "bamba",
        "ernie4_5_moe",
        "exaone_moe",
        "hunyuan_v1_moe",
        "hy_v3",
        "ministral3",
        "solar_open",
        "glm_moe_dsa",
        "gpt_oss",
        "llama4_text",
        "minimax",
        "glm4_moe",
        "glm4_moe_lite",
        "nemotron_h",
        "mixtral",
        "olmo2",
        "olmo3",
        "olmoe",
        "phi3",
    ):
        usual_epsilon = 1e-5
    epsilon = fields.figure(
        usual_epsilon,
        *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps", "norm_epsilon"),
        most=1.0,
    )
    caps = (50.0, 30.0) if name == "gemma2" else (None, None)
    is_gemma, is_granite = name in _GEMMAS, name in ("granite", "granitemoe", "granitemoehybrid")
    multiplier = fields.figure(None, "attention_multiplier") if is_granite else None
    scaled = {
        "embedding_scale": math.sqrt(sizes["hidden_size"]) if is_gemma else 1.0,
        "residual_scale": 1.0,
        "logit_scale": 1.0,
    }
    if is_granite:
        scaled["embedding_scale"] = fields.figure(1.0, "embedding_multiplier") or 1.0
        scaled["residual_scale"] = fields.figure(1.0, "residual_multiplier") or 1.0
        scaled["logit_scale"] = 1.0 / (fields.figure(1.0, "logits_scaling") or 1.0)
    if name in ("cohere", "cohere2"):
        scaled["logit_scale"] = fields.figure(0.0625, "logit_scale") or 1.0
    scalar = fields.figure(256.0 if name in ("gemma2", "gemma3_text") else None, "query_pre_attn_scalar")
    deviation = fields.figure(_DEVIATIONS.get(name, 0.02), "initializer_range", "init_std", most=1.0)
    softcaps = (fields.figure(caps[0], "attn_logit_softcapping"), fields.figure(caps[1], "final_logit_softcapping"))
    activation = _activation(fields, is_gated=bool(sizes.get("is_gated")))
    limit = fields.figure(7.0, "swiglu_limit") if name == "gpt_oss" else None
    if fields.faults:
        return Numerics()
    return Numerics(
        norm_epsilon=epsilon or usual_epsilon,
        activation=activation,
        activation_limit=limit,
        gate_offset=1.0 if name == "gpt_oss" else 0.0,
        initial_deviation=deviation or 0.02,
        attention_softcap=softcaps[0],
        logit_softcap=softcaps[1],
        query_scalar=scalar if multiplier is None else multiplier**-2,
        has_zero_centred_norms=is_gemma or name == "nemotron" or name.startswith(("qwen3_next", "qwen3_5")),
        has_query_key_l2_norms=name == "llama4_text" and fields.flag("use_qk_norm", True),
        **scaled,
    )


def _activation(fields: Fields, *, is_gated: bool) -> Activation | None:
    """Return the function of the feed-forward part; None where it follows from the gate, or has no name here."""
    name = fields.architecture
    if name == "gpt_oss":  # it says silu, and is a gate of its own: x sigmoid(1.702 x)
        return "quick_gelu"
    usual: Activation = _USUAL.get(name, "silu" if is_gated else "gelu")
    word = fields.word("mlp_hidden_act", "hidden_activation", "hidden_act", "activation_function", "act_fn")
    if name == "gemma":  # whose first configurations say gelu, and mean its approximation
        word = ""
    found = _ACTIVATIONS.get(word) if word else usual
    if found is None:
        fields.notes.append(f"the activation {shown(word)} has no name in launch files here; {usual} stands for it")
        found = usual
    return None if found == ("silu" if is_gated else "gelu") else found


# Balanced by a bias. Rate and weight: DeepSeek-AI, arXiv 2412.19437, section 4.2; GLM-4.5 team, arXiv 2508.06471,
# section 2.4; NVIDIA, Nemotron 3 Nano, section 2.
_BY_BIAS = (
    *("deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "nemotron_h"),
    *("dots1", "ernie4_5_moe", "minimax_m2", "exaone_moe", "hy_v3", "solar_open"),
)
_BIAS_RATE, _BESIDE_BIAS = 1e-3, 1e-4
_SEQUENCE = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe")
_NOT_NORMALISED = (
    *("qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text", "olmoe", "deepseek_v2", "dots1", "llama4_text", "phimoe"),
)
_SCORES = ("softmax", "sigmoid")


def routing_of(fields: Fields) -> Routing:
    """Return how the router of an architecture with experts scores and balances."""
    name = fields.architecture
    is_sigmoid = name in (*_BY_BIAS, "llama4_text") and name != "ernie4_5_moe"
    word = fields.word("scoring_func", "score_function") or ("sigmoid" if is_sigmoid else "softmax")
    word = "sigmoid" if (name, word) == ("dots1", "noaux_tc") else word  # the name of how its bias balances
    if word not in _SCORES:
        fields.fault("scoring_func", f"{shown(word)} is no score of experts.", "Write softmax or sigmoid.")
    is_by_bias = name in _BY_BIAS or (
        name.startswith("bailing_moe") and fields.flag("moe_router_enable_expert_bias", False)
    )
    weight = fields.figure(_BESIDE_BIAS if is_by_bias else 1e-3, "aux_loss_alpha", "router_aux_loss_coef")
    usual_scale = dict.fromkeys(("deepseek_v3", "deepseek_v32", "exaone_moe", "glm_moe_dsa"), 2.5) | {"hy_v3": 2.826}
    scale = fields.figure(usual_scale.get(name, 1.0), "routed_scaling_factor", "router_scaling_factor")
    z_loss = fields.figure(0.0, "router_z_loss_coef")
    is_normalised = fields.flag("norm_topk_prob", name not in _NOT_NORMALISED)
    is_of_sequence = fields.flag("seq_aux", name in _SEQUENCE)
    if fields.faults:
        return Routing()
    return Routing(
        score="sigmoid" if word == "sigmoid" else "softmax",
        is_normalised=is_normalised,
        scale=scale or 1.0,
        is_input_scaled=name == "llama4_text",
        # Qwen team, arXiv 2505.09388, section 2: over the global batch.
        auxiliary_loss=(
            "none"
            if not weight
            else "sequence"
            if is_of_sequence
            else "global_batch"
            if name.startswith(("qwen3_moe", "qwen3_next", "qwen3_omni_moe", "qwen3_vl_moe", "qwen3_5_moe"))
            else "batch"
        ),
        auxiliary_coefficient=weight or 0.0,
        bias="linear" if name == "gpt_oss" else "selection",
        bias_update_rate=_BIAS_RATE if is_by_bias else 0.0,
        z_loss=z_loss or 0.0,
    )
