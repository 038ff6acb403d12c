"""Configurations of vision-language models: both parts, their counts, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import SpecError
from planner.importers.huggingface import HuggingFaceNetwork, read_huggingface
from planner.zoo.transformers import row

CLIP: dict[str, Any] = {
    **{"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24},
    **{"num_attention_heads": 16, "image_size": 336, "patch_size": 14, "projection_dim": 768, "vocab_size": 32000},
}
SIGLIP: dict[str, Any] = {
    **{"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27},
    **{"num_attention_heads": 16, "image_size": 896, "patch_size": 14, "vision_use_head": False},
}
QWEN_VISION: dict[str, Any] = {
    **{"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "in_chans": 3, "patch_size": 14},
    **{"out_hidden_size": 3584, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112},
    "fullatt_block_indexes": [7, 15, 23, 31],
}
QWEN_TEXT: dict[str, Any] = {
    **{"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28},
    **{"num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 128000, "rms_norm_eps": 1e-6},
    **{"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
    **{"tie_word_embeddings": False, "torch_dtype": "bfloat16"},
}
# As their publishers state them on huggingface.co: llava-hf/llava-1.5-7b-hf, Qwen/Qwen2.5-VL-7B-Instruct,
# Qwen/Qwen2-VL-7B-Instruct, google/gemma-3-27b-pt; and the parameters of their checkpoints.
PUBLISHED: dict[str, tuple[dict[str, Any], int, int]] = {
    "llava": (
        {
            "model_type": "llava",
            "architectures": ["LlavaForConditionalGeneration"],
            "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
            "vision_config": CLIP,
            "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default",
        },
        7_063_427_072,
        576,
    ),
    "qwen2_5_vl": ({"model_type": "qwen2_5_vl", **QWEN_TEXT, "vision_config": QWEN_VISION}, 8_292_166_656, 1296),
    "qwen2_vl": (
        {
            **{"model_type": "qwen2_vl", **QWEN_TEXT},
            "vision_config": {
                **{"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "in_chans": 3},
                **{"hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2},
            },
        },
        8_291_375_616,
        1296,
    ),
    "gemma3": (
        {
            "model_type": "gemma3",
            "mm_tokens_per_image": 256,
            "text_config": {
                **{"model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504, "head_dim": 128},
                **{"num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16},
                **{"query_pre_attn_scalar": 168, "sliding_window": 1024},
            },
            "vision_config": SIGLIP,
        },
        27_432_406_640,
        256,
    ),
}


def read(folder: Path, values: dict[str, Any], **more: Any) -> HuggingFaceNetwork:
    (folder / "config.json").write_text(json.dumps(values))
    return read_huggingface(folder, **more)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_the_parameters_and_the_tokens_of_their_checkpoints(name: str, tmp_path: Path) -> None:
    values, parameters, tokens = PUBLISHED[name]
    found = read(tmp_path, values)
    assert (found.transformer.num_parameters, found.transformer.num_image_tokens) == (parameters, tokens)
    assert any("one image a sample" in note for note in found.notes)
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("name", "zoo"), [("qwen2_5_vl", "qwen2.5-vl-7b"), ("llava", "llava-1.5-7b"), ("gemma3", "gemma3-27b-vision")]
)
def test_the_zoo_has_the_same_encoder(name: str, zoo: str, tmp_path: Path) -> None:
    found = read(tmp_path, PUBLISHED[name][0]).transformer
    assert found.encoder == row(zoo).transformer.encoder


def test_a_file_of_two_levels_is_the_same_network_as_one_of_one(tmp_path: Path) -> None:
    flat = read(tmp_path, PUBLISHED["qwen2_5_vl"][0]).transformer
    text = {**QWEN_TEXT, "model_type": "qwen2_5_vl_text"}
    assert read(
        tmp_path, {"model_type": "qwen2_5_vl", "text_config": text, "vision_config": QWEN_VISION}
    ).transformer == (flat)


def test_sizes_that_a_publisher_leaves_to_the_library_are_said(tmp_path: Path) -> None:
    notes = read(tmp_path, PUBLISHED["llava"][0]).notes
    assert "num_hidden_layers: 32, as transformers has it where it is left out" in notes


@pytest.mark.parametrize(
    ("name", "part", "change", "words"),
    [
        ("llava", "vision_config", {"patch_size": 13}, "an image of 336 pixels has no whole number of these"),
        ("llava", "vision_config", {"model_type": "pixtral"}, "only the encoders clip_vision_model"),
        ("llava", None, {"vision_feature_select_strategy": "full"}, "another choice of tokens"),
        ("llava", None, {"vision_feature_layer": [-2, -5]}, "features of several layers"),
        ("llava", "vision_config", {"num_attention_heads": 15}, "no multiple of the 15 heads"),
        ("llava", "vision_config", {"hidden_size": "wide"}, "is text, not a number"),
        ("llava", "text_config", {"model_type": "unheard_of"}, "nothing is known of its text part 'unheard_of'"),
        ("gemma3", None, {"mm_tokens_per_image": 250}, "no means of equal squares of 64 x 64 patches"),
        ("gemma3", "vision_config", {"vision_use_head": True}, "a head that pools all patches"),
        ("qwen2_5_vl", "vision_config", {"out_hidden_size": 2048}, "as wide as those of text, 3584"),
        ("qwen2_5_vl", "vision_config", {"window_size": 100}, "no whole number of patches of 14"),
    ],
)
def test_what_is_not_counted_is_refused(
    name: str, part: str | None, change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    values = PUBLISHED[name][0]
    changed = {**values, **change} if part is None else {**values, part: {**values[part], **change}}
    with pytest.raises(SpecError, match=words):
        read(tmp_path, changed)


def test_more_tokens_of_images_than_a_sample_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="1 images of 576 tokens are 576 tokens, more than the sequence of 512"):
        read(tmp_path, PUBLISHED["llava"][0], sequence_length=512)


def test_the_text_alone_is_read_where_that_is_asked_for(tmp_path: Path) -> None:
    found = read(tmp_path, PUBLISHED["gemma3"][0], is_text_only=True).transformer
    assert found.encoder is None
    assert found.num_parameters == row("gemma3-27b").transformer.num_parameters
