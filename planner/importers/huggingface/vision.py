"""Vision-language models of Hugging Face: an encoder of images in front of a decoder, from both parts of a file.

The decoder is read as any other. Source of the encoders and of the projectors: ``configuration_*.py`` and
``modeling_*.py`` of ``llava``, ``gemma3``, ``qwen2_vl``, ``qwen2_5_vl``, ``clip`` and ``siglip`` in
``huggingface/transformers`` 5.23, against whose own counts of parameters they are tested.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from planner.encoders import MOST_MERGED, Projector
from planner.importers.huggingface.configuration import Fields
from planner.transformer import MOST_CHANNELS, MOST_FRAMES, MOST_HEADS, MOST_LAYERS, MOST_PIXELS, MOST_WIDTH, Image

__all__ = ["SEEING", "TEXT_KINDS", "text_of"]

# What the text part is where a file of one level says nothing, or where its own name is none that is read.
TEXT_KINDS = {"qwen2_5_vl": "qwen2_5_vl_text", "qwen2_vl": "qwen2", "qwen2_vl_text": "qwen2", "gemma3": "gemma3_text"}
_PARTS = ("vision_config", "text_config", "architectures", "model_type")
_UNSEEN = 1008  # pixels of an image whose size no configuration names: Qwen's are of any


def text_of(values: Mapping[str, Any]) -> dict[str, Any]:
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
