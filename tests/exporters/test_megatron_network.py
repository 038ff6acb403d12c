"""The network of Megatron-LM's options: every figure goes over, comes back as it was, and what cannot is said."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_jobs import even_job

from planner.errors import SpecError
from planner.exporters import megatron, network_of
from planner.exporters.megatron_network import pattern_of, transformer_of
from planner.exporters.scripts import Parsed
from planner.families.hybrid.launch_network import missing_options, network_lines, not_expressed
from planner.mixers import DeltaNet, Mamba
from planner.numerics import AuxiliaryLoss, Numerics, Rotary, RotaryScaling, Routing
from planner.transformer import Transformer
from planner.transformer_parts import Experts, LatentAttention

LAUNCH = Path("launch.sh")
LATENT = LatentAttention(query_rank=48, key_value_rank=32, rope_size=16, nope_size=32, value_size=32)
LLAMA3 = RotaryScaling(kind="llama3", factor=8.0, original_length=8192)
YARN = RotaryScaling(kind="yarn", factor=40.0, original_length=4096, scale=1.0, scale_all=0.707)
OSS = RotaryScaling(kind="yarn", factor=32.0, original_length=8192, beta_fast=16.0, is_truncated=False)
LINEAR, PART = RotaryScaling(kind="linear", factor=4.0), RotaryScaling(kind="linear", factor=2.5)
SMALL: dict[str, Any] = {"num_layers": 6, "hidden_size": 64, "num_heads": 4, "vocabulary_size": 1000}


def file_of(network: Transformer) -> Parsed:
    """The options of a network, as a command has them."""
    return Parsed.of_options(LAUNCH, shlex.split(" ".join(network_lines(network, "bf16"))))


@st.composite
def routings(draw: st.DrawFn, *, has_biases: bool) -> Routing:
    is_soft, loss = has_biases or draw(st.booleans()), draw(st.sampled_from(get_args(AuxiliaryLoss)))
    return Routing(
        score="softmax" if is_soft else "sigmoid",
        is_normalised=draw(st.booleans()) if is_soft else True,
        scale=draw(st.sampled_from([1.0, 2.5, 16.0])),
        is_input_scaled=draw(st.booleans()),
        auxiliary_loss=loss,
        auxiliary_coefficient=0.01 if loss == "none" else draw(st.sampled_from([0.01, 1e-4])),
        bias_update_rate=0.0 if is_soft else draw(st.sampled_from([1e-3, 2e-4])),
        bias="linear" if has_biases else "selection",
        z_loss=draw(st.sampled_from([0.0, 1e-3])),
    )


@st.composite
def mixtures(draw: st.DrawFn, *, has_biases: bool) -> Experts:
    """Experts of every make that the program has."""
    routing, shared = draw(routings(has_biases=has_biases)), draw(st.integers(0, 2))
    return Experts(
        num_experts=8,
        top_k=draw(st.integers(2, 4)),
        expert_size=48,
        num_shared=shared,
        has_shared_gate=shared > 0 and draw(st.booleans()),
        every=draw(st.integers(1, 2)),
        num_dense_first=draw(st.integers(0, 3)),
        has_router_bias=has_biases or routing.bias_update_rate > 0,
        groups=draw(st.sampled_from([1, 2])),
        routing=routing,
    )


@st.composite
def layers(draw: st.DrawFn) -> dict[str, Any]:
    attention: dict[str, Any] = {"has_sinks": draw(st.booleans()), "has_attention_gate": draw(st.booleans())}
    kind = draw(st.sampled_from(["attention", "window", "delta", "pattern"]))
    if kind == "window":
        mixers = draw(st.sampled_from([("window",), ("window", "attention"), ("window",) * 5 + ("attention",)]))
        return {**attention, "window": draw(st.sampled_from([1, 64])), "mixers": mixers}
    if kind == "delta":
        sizes = DeltaNet(num_key_heads=2, num_value_heads=4, key_size=16, value_size=32)
        return {**attention, "mixers": ("delta", "delta", "attention"), "delta": sizes}
    if kind == "pattern":
        mamba = Mamba(num_heads=4, head_size=32, state_size=16, num_groups=draw(st.sampled_from([1, 2])))
        return {**attention, "pattern": "M-M*-E", "mamba": mamba}
    return attention


@st.composite
def networks(draw: st.DrawFn) -> Transformer:
    """Networks of every make that the program has."""
    is_latent, has_biases = draw(st.booleans()), draw(st.booleans())
    positions = draw(st.sampled_from(["rotary", "learned", "none"]))
    scaling = draw(st.sampled_from([None, YARN] if is_latent else [None, LLAMA3, LINEAR, YARN, OSS]))
    rotary = Rotary(
        base=draw(st.sampled_from([1e4, 5e5, 1e6])),
        fraction=1.0 if is_latent else draw(st.sampled_from([1.0, 0.5])),
        is_interleaved=is_latent or draw(st.booleans()),
        without_every=0 if is_latent else draw(st.sampled_from([0, 4])),
        longest=draw(st.sampled_from([None, 4096])),
        scaling=scaling,
    )
    is_gated = draw(st.booleans())
    numerics = Numerics(
        norm_epsilon=draw(st.sampled_from([1e-5, 1e-6])),
        activation=draw(st.sampled_from([None, "quick_gelu"] if is_gated else [None, "relu_squared"])),
        activation_limit=draw(st.sampled_from([None, 7.0])),
        gate_offset=draw(st.sampled_from([0.0, 1.0])),
        initial_deviation=draw(st.sampled_from([0.02, 0.006])),
        has_zero_centred_norms=draw(st.booleans()),
        has_query_key_l2_norms=draw(st.booleans()),
    )
    heads: dict[str, Any] = {"latent": LATENT}
    if not is_latent:
        norms = draw(st.booleans())
        heads = {"num_kv_heads": draw(st.sampled_from([1, 2, 4])), "head_size": 32, "has_query_key_norms": norms}
    makes: dict[str, Any] = {
        **SMALL,
        **heads,
        "positions": positions,
        "num_positions": draw(st.sampled_from([None, 1024])) if positions == "learned" else None,
        "norm": draw(st.sampled_from(["layer_norm", "rms_norm"])),
    }
    makes |= draw(layers()) if not is_latent else {}
    mixture: Experts | None = draw(st.none() | mixtures(has_biases=has_biases))
    if "pattern" in makes:  # which says what has experts
        mixture = replace(draw(mixtures(has_biases=has_biases)), every=1, num_dense_first=0)
    if makes["norm"] == "layer_norm":
        makes["has_norm_biases"] = True
    return Transformer(
        **makes,
        sequence_length=draw(st.sampled_from([128, 512])),
        feed_forward_size=160,
        rotary=rotary if positions == "rotary" else None,
        is_gated=is_gated,
        has_biases=has_biases,
        has_qkv_biases=has_biases or draw(st.booleans()),
        has_tied_embeddings=draw(st.booleans()),
        numerics=numerics,
        experts=mixture,
    )


@settings(max_examples=150, deadline=None)
@given(networks())
def test_a_network_that_is_read_back_is_the_one_that_was_written(network: Transformer) -> None:
    assert not not_expressed(network)
    assert not missing_options(network)
    file = file_of(network)
    assert file.flags.keys() <= megatron.KNOWN
    found = transformer_of(file)
    assert found == network
    assert found.num_parameters == network.num_parameters


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"rotary": Rotary(scaling=replace(LLAMA3, low_frequency_factor=2.0))},
            "low frequency factor 2 of the scaling",
        ),
        ({"rotary": Rotary(scaling=PART)}, "scaling of rotary positions of the kind 'linear' 2.5"),
        ({"rotary": Rotary(local_base=1e5)}, "another base of rotary positions"),
        ({"numerics": Numerics(attention_softcap=50.0)}, "a cap of attention's scores"),
        ({"numerics": Numerics(activation="gelu_tanh"), "is_gated": True}, "the activation gelu_tanh of a gate"),
    ],
)
def test_a_figure_without_an_option_is_named_beside_the_command(change: dict[str, Any], words: str) -> None:
    network = Transformer(**SMALL, sequence_length=128, positions="rotary", norm="rms_norm", has_biases=False, **change)
    assert not not_expressed(network)
    (found,) = missing_options(network)
    assert words in found


def test_what_a_job_leaves_to_the_user_is_in_the_notes_of_its_export() -> None:
    block = {"layers": 4, "hidden": 1024, "heads": 8, "vocabulary": 32000, "sequence_length": 1024}
    job = even_job({**block, "numerics": {"logit_softcap": 30.0}}, data=2)
    assert any("no option for a cap of the logits (30.0): set them" in note for note in megatron.export(job).notes)


def test_the_padding_of_a_vocabulary_is_read_as_the_program_pads_it() -> None:
    options = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --vocab-size 1000"
    read = transformer_of(Parsed.of_options(LAUNCH, f"{options} --tensor-model-parallel-size 2".split()))
    assert read.vocabulary_size == 1024
    exact = transformer_of(Parsed.of_options(LAUNCH, f"{options} --make-vocab-size-divisible-by 1".split()))
    assert exact.vocabulary_size == 1000


@pytest.mark.parametrize(
    ("text", "pattern"), [("1", "1111"), ("2", "1010"), ("([0]*1+[1]*3)", "0111"), ("[0,1]*2", "0101")]
)
def test_patterns_of_layers_are_read_without_being_run(text: str, pattern: str) -> None:
    file = Parsed(LAUNCH, {"moe-layer-freq": [text]}, mark="--", is_text=True)
    assert "".join(map(str, pattern_of(file, "moe-layer-freq", 4))) == pattern


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("--hidden-size 1024", "--hidden-size wide", "hidden-size: 'wide' is no whole number"),
        ("--norm-epsilon 1e-05", "--norm-epsilon small", "norm-epsilon: 'small' is no number"),
        ("--norm-epsilon 1e-05", "--norm-epsilon 2", "norm_epsilon is 2.0"),
        ("--normalization LayerNorm", "--normalization Norm", "'Norm' is none"),
        ("--moe-layer-freq 1", "--moe-layer-freq __import__", "'__import__' is no pattern of layers"),
        ("--moe-layer-freq 1", "--moe-layer-freq [1]*3", "is for 3 layers of 4"),
        ("--num-attention-heads 8", "--num-attention-heads 7", "no multiple of the 7 heads"),
    ],
)
def test_damaged_sizes_are_refused_with_their_option(old: str, new: str, why: str) -> None:
    block = {"layers": 4, "hidden": 1024, "heads": 8, "vocabulary": 32000, "sequence_length": 1024}
    experts = {"count": 4, "top_k": 2, "size": 1024}
    text = megatron.export(even_job({**block, "experts": experts}, data=2)).files["launch.sh"]
    text = text.replace("--num-experts 4", "--num-experts 4 --moe-layer-freq 1")
    assert network_of(LAUNCH, text) is not None
    assert old in text
    with pytest.raises(SpecError, match=why):
        network_of(LAUNCH, text.replace(old, new))
