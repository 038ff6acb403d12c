"""What a configuration says beside sizes: every figure as the publisher states it, and what cannot be is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import SpecError
from planner.importers.huggingface import HuggingFaceNetwork, read_huggingface
from planner.numerics import Numerics, Rotary, RotaryScaling, Routing
from planner.transformer import Transformer

TABLE: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "huggingface.json").read_text(encoding="utf-8"))
LLAMA_3_1: dict[str, Any] = {
    "rope_theta": 500000.0,
    "rope_scaling": {
        **{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"},
        "original_max_position_embeddings": 8192,
    },
}


def read(folder: Path, name: str, **changed: Any) -> HuggingFaceNetwork:
    values = {key: value for key, value in {**TABLE[name]["config"], **changed}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return read_huggingface(folder)


def routing(network: Transformer) -> Routing:
    assert network.experts is not None
    return network.experts.routing


def test_llama_3_1_has_the_angles_of_its_configuration(tmp_path: Path) -> None:
    found = read(tmp_path, "Llama-3.1-405B", **LLAMA_3_1).transformer
    scaling = RotaryScaling(
        kind="llama3", factor=8.0, original_length=8192, low_frequency_factor=1.0, high_frequency_factor=4.0
    )
    assert found.rotary == Rotary(base=500000.0, longest=131072, scaling=scaling)
    assert found.numerics == Numerics(norm_epsilon=1e-5, initial_deviation=0.02)
    assert found.activation == "silu"


def test_qwen_3_has_the_figures_of_its_configuration(tmp_path: Path) -> None:
    found = read(tmp_path, "Qwen3-235B-A22B").transformer
    assert found.rotary == Rotary(base=1e6, longest=40960)
    assert found.numerics == Numerics(norm_epsilon=1e-6)
    assert routing(found) == Routing(auxiliary_loss="global_batch", auxiliary_coefficient=0.001)
    assert not routing(read(tmp_path, "Qwen3-235B-A22B", norm_topk_prob=...).transformer).is_normalised


def test_deepseek_v3_has_the_figures_of_its_configuration_and_its_report(tmp_path: Path) -> None:
    found = read(tmp_path, "DeepSeek-V3").transformer
    scaling = RotaryScaling(kind="yarn", factor=40.0, original_length=4096, scale=1.0, scale_all=1.0)
    assert found.rotary == Rotary(base=1e4, is_interleaved=True, longest=163840, scaling=scaling)
    assert found.numerics == Numerics(norm_epsilon=1e-6)
    assert routing(found) == Routing(
        score="sigmoid", scale=2.5, auxiliary_loss="sequence", auxiliary_coefficient=1e-4, bias_update_rate=1e-3
    )


def test_kimi_k2_scales_what_its_experts_give_by_its_own_factor(tmp_path: Path) -> None:
    found = read(tmp_path, "Kimi-K2-Base").transformer
    assert (routing(found).scale, routing(found).auxiliary_coefficient) == (2.827, 0.001)
    assert found.rotary is not None
    assert (found.rotary.base, found.rotary.scaling and found.rotary.scaling.beta_fast) == (50000.0, 1.0)


def test_gemma_has_soft_limits_scalars_and_norms_of_its_own(tmp_path: Path) -> None:
    found = read(tmp_path, "gemma-2-27b").transformer.numerics
    assert (found.attention_softcap, found.logit_softcap, found.query_scalar) == (50.0, 30.0, 144.0)
    assert found.has_zero_centred_norms
    assert (found.activation, found.embedding_scale) == ("gelu_tanh", 4608**0.5)
    third = read(tmp_path, "gemma-3-27b").transformer
    assert (third.numerics.attention_softcap, third.numerics.query_scalar) == (None, 168.0)
    assert third.rotary == Rotary(
        base=1e6, local_base=1e4, longest=131072, scaling=RotaryScaling(kind="linear", factor=8.0)
    )


def test_llama_4_leaves_positions_out_of_every_fourth_layer(tmp_path: Path) -> None:
    found = read(tmp_path, "Llama-4-Scout-17B-16E").transformer
    assert found.rotary is not None
    assert (found.rotary.without_every, found.rotary.is_interleaved, found.rotary.longest) == (4, True, 10485760)
    assert found.numerics.has_query_key_l2_norms
    assert (routing(found).score, routing(found).is_input_scaled, routing(found).is_normalised) == (
        "sigmoid",
        True,
        False,
    )
    named = read(tmp_path, "Llama-4-Scout-17B-16E", no_rope_layers=[1, 1, 0] * 16).transformer
    assert named.rotary is not None
    assert named.rotary.without_every == 3


@pytest.mark.parametrize(
    ("name", "fraction", "activation"),
    [
        ("GLM-4.5", 0.5, "silu"),
        ("gpt-j-6b", 0.25, "gelu_tanh"),
        ("pythia-12b", 0.25, "gelu"),
        ("phi-2", 0.4, "gelu_tanh"),
        ("Mistral-7B-v0.1", 1.0, "silu"),
    ],
)
def test_a_share_of_a_head_turns(name: str, fraction: float, activation: str, tmp_path: Path) -> None:
    turned: dict[str, dict[str, Any]] = {"gpt-j-6b": {"rotary_dim": 64}, "phi-2": {"partial_rotary_factor": 0.4}}
    more = turned.get(name, {})
    found = read(tmp_path, name, **more).transformer
    assert found.rotary is not None
    assert found.rotary.fraction == fraction
    assert found.activation == activation


def test_the_form_of_transformers_5_says_the_same(tmp_path: Path) -> None:
    old = read(tmp_path, "Llama-3.1-405B", **LLAMA_3_1).transformer
    given = {**LLAMA_3_1["rope_scaling"], "rope_theta": 500000.0}
    assert read(tmp_path, "Llama-3.1-405B", rope_parameters=given).transformer == old
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    third = read(tmp_path, "gemma-3-27b").transformer
    gone: dict[str, Any] = dict.fromkeys(("rope_theta", "rope_local_base_freq", "rope_scaling"), ...)
    assert read(tmp_path, "gemma-3-27b", rope_parameters=nested, **gone).transformer == third


@pytest.mark.parametrize(
    ("changed", "field", "words"),
    [
        ({"rope_theta": "big"}, "rope_theta", "'big' is no number"),
        ({"rope_theta": -1}, "rope_theta", "Write a number above 0"),
        ({"rope_scaling": [8]}, "rope_scaling", "is no object"),
        ({"rope_scaling": {"type": "linear", "factor": "x"}}, "rope_scaling", "factor is 'x'"),
        (
            {"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 8, "high_freq_factor": 4}},
            "rope_scaling",
            "low_frequency_factor 8 is above",
        ),
        ({"rms_norm_eps": 2.0}, "rms_norm_eps", "at most 1"),
        ({"initializer_range": True}, "initializer_range", "True is no number"),
        ({"hidden_act": 7}, "hidden_act", "7 is no text"),
    ],
)
def test_figures_that_cannot_be_are_refused(changed: dict[str, Any], field: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        read(tmp_path, "Llama-3.1-405B", **changed)
    assert [one.field for one in error.value.faults] == [field]
    assert words in str(error.value)


def test_what_launch_files_do_not_say_is_noted(tmp_path: Path) -> None:
    notes = read(tmp_path, "Llama-3.1-405B", rope_scaling={"type": "longrope"}, hidden_act="mish").notes
    assert any("'longrope'" in one for one in notes)
    assert any("'mish'" in one for one in notes)
    with pytest.raises(SpecError, match="Write softmax or sigmoid"):
        read(tmp_path, "DeepSeek-V3", scoring_func="sparsemax")
