"""Architectures of Hugging Face that are known and not counted, each with its reason."""

from collections.abc import Mapping
from typing import Any

from planner.importers.huggingface.file import OTHER_WAYS

__all__ = ["reason_against"]

_ENCODER_DECODER = "it has an encoder and a decoder, which attend to each other; only one stack of blocks is counted"
_RECURRENT = "some of its layers are recurrent or linear in the length, not attention; these are not counted"
_CONVOLUTION = "its layers are not those of a transformer"

_REASONS = {
    **dict.fromkeys(
        (
            *("t5", "mt5", "umt5", "byt5", "longt5", "switch_transformers", "t5gemma", "bart", "mbart", "pegasus"),
            *("pegasus_x", "bigbird_pegasus", "blenderbot", "blenderbot-small", "led", "marian", "m2m_100", "nllb-moe"),
            *("plbart", "prophetnet", "fsmt", "whisper", "speech_to_text", "encoder-decoder", "moonshine"),
            *("vision-encoder-decoder", "speech-encoder-decoder", "rag", "seamless_m4t"),
        ),
        _ENCODER_DECODER,
    ),
    **dict.fromkeys(
        (
            *("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm", "recurrent_gemma", "jamba", "zamba", "zamba2"),
            *("bamba", "falcon_h1", "nemotron_h", "granitemoehybrid", "lfm2", "lfm2_moe", "qwen3_next", "kimi_linear"),
            *("minimax", "olmo_hybrid", "qwen3_5_text", "qwen3_5_moe_text", "bailing_hybrid", "zaya"),
        ),
        _RECURRENT,
    ),
    **dict.fromkeys(
        ("resnet", "convnext", "convnextv2", "efficientnet", "mobilenet_v1", "mobilenet_v2", "regnet", "poolformer"),
        _CONVOLUTION,
    ),
    "gpt_oss": "its attention has learned sinks and its experts biases of their own, which are not counted",
    "granite_swa": "its attention has learned sinks, which are not counted",
    "bitnet": "its attention and its feed-forward part have norms within",
    "diffllama": "its attention is the difference of two",
    "hyperclovax": "it has further norms behind each half, where its configuration says so",
    "nanochat": "its norms have no parameters, and its feed-forward part no gate",
    "hrm_text": "its blocks run more than once, with shared parameters",
    "albert": "all its layers share one set of parameters",
    "electra": "its embedding has another width than its stream, and a discriminator follows",
    "apertus": "its activation has parameters of its own",
    "dbrx": "its configuration has nested parts, which are not read",
    "deepseek_v32": "a second, smaller attention chooses the tokens that are attended to, which is not counted",
    "deepseek_v4": "a second, smaller attention chooses the tokens that are attended to, which is not counted",
    "gemma3n_text": "its layers have parts that no other network has",
    "reformer": "its attention is by hashing",
    "longformer": "its attention is by windows with a second set of projections",
    "big_bird": "its attention is sparse",
    "deberta": "its positions are relative and have projections of their own",
    "deberta-v2": "its positions are relative and have projections of their own",
    "xlnet": "its positions are relative and have projections of their own",
    "transfo-xl": "its positions are relative and have projections of their own",
    "swin": "its layers differ in width",
    "swinv2": "its layers differ in width",
    "deit": "it has two tokens before its patches",
}
_PARTS = ("vision_config", "audio_config", "speech_config", "image_config", "video_config", "encoder", "decoder")


def reason_against(model_type: str, values: Mapping[str, Any]) -> tuple[str, str]:
    """Return why a configuration is not counted, and what to do; both empty where nothing speaks against it."""
    if values.get("is_encoder_decoder") is True:
        return _ENCODER_DECODER, OTHER_WAYS
    if model_type in _REASONS:
        return _REASONS[model_type], OTHER_WAYS
    parts = [name for name in _PARTS if isinstance(values.get(name), Mapping)]
    text = values.get("text_config")
    if isinstance(text, Mapping) and (parts or "hidden_size" not in values):
        with_parts = f" beside {' and '.join(parts)}" if parts else ""
        reason = f"it has several parts: text_config{with_parts}; only one stack of blocks is counted"
        kind = text.get("model_type")
        named = f" (model_type {kind!r})" if isinstance(kind, str) and kind.isprintable() and len(kind) <= 80 else ""
        return reason, f"For its text part{named} alone write dnn.text_only: true, or import with --text-only."
    if parts:
        return f"it has several parts: {' and '.join(parts)}; only one stack of blocks is counted", OTHER_WAYS
    return "", ""
