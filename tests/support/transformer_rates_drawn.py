"""Rates and networks for tests of transformers' time: round figures, of no real device; no ratio is 1."""

from dataclasses import replace
from typing import Any

from planner.models.compute import Constants, DeviceRates, Software
from planner.models.tiers import Tier
from planner.models.transformer_interval import LayerFigures
from planner.transformer import Transformer
from planner.transformer_parts import Experts

CONSTANTS = Constants(
    startup_width=100.0,
    wave_share=0.5,
    misaligned_cost=0.5,
    misaligned_head_cost=2.0,
    score_bytes=11.0,
    accumulation_ratio=1.2,
    head_floor_ratio=1.1,
    hop_s=2e-6,
    tensor_floor_ratio=0.1,
    contention=0.3,
    inside_efficiency=0.8,
    outside_efficiency=0.7,
    send_s=3e-5,
)
RATES = DeviceRates(
    name="round",
    peak_flop_per_s=3e14,
    memory_bandwidth_bytes_per_s=2e12,
    num_multiprocessors=100,
    product_efficiency=0.8,
    memory_efficiency=0.7,
    attention_efficiency=0.5,
)
SOFTWARE = Software(
    name="plain",
    launch_s=5e-4,
    has_flash_attention=True,
    has_dropout=False,
    has_fused_loss=True,
    accumulation_bytes=6.0,
)
TIERS = (
    Tier(size=8, bandwidth_bytes_per_s=3e11),
    Tier(size=1024, bandwidth_bytes_per_s=2.5e10, num_rails=8),
)
GPT = Transformer(num_layers=24, hidden_size=2048, num_heads=16, vocabulary_size=51200, sequence_length=1024)
MIXTURE = Transformer(
    num_layers=24,
    hidden_size=2048,
    num_heads=16,
    num_kv_heads=8,
    vocabulary_size=32000,
    sequence_length=1024,
    feed_forward_size=4096,
    is_gated=True,
    has_tied_embeddings=False,
    positions="rotary",
    norm="rms_norm",
    has_biases=False,
    experts=Experts(num_experts=8, top_k=2, expert_size=4096, num_dense_first=1),
)


def figures_of(transformer: Transformer, **changed: Any) -> LayerFigures:
    """What layouts of a network share, but for what is changed."""
    usual = LayerFigures(transformer=transformer, tiers=TIERS, rates=RATES, software=SOFTWARE, constants=CONSTANTS)
    return replace(usual, **changed)
