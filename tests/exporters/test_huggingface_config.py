"""The planned network as a ``config.json``: what the reader of such files makes of it is the same network."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from layout_jobs import even_job

from planner.exporters import export
from planner.exporters.huggingface_config import architecture_of, config_text
from planner.importers.huggingface import read_huggingface
from planner.transformer import Transformer
from planner.zoo.transformers import block_of, row, row_names


def without_correction(network: Transformer) -> Transformer:
    """The network less the correction of its router, which a checkpoint has and the library trains not."""
    experts = network.experts
    if experts is None:
        return network
    # Mixtral's layers all have experts: no width of a dense one is said.
    width = network.feed_forward_size if network.has_dense else experts.expert_size
    return replace(network, experts=replace(experts, has_router_bias=False), feed_forward_size=width)


@pytest.mark.parametrize("name", row_names())
def test_a_network_read_back_is_the_one_that_was_written(name: str, tmp_path: Path) -> None:
    network = row(name).transformer
    text = config_text(network, "bf16")
    if architecture_of(network) is None:
        assert text is None
        return
    assert text is not None
    (tmp_path / "config.json").write_text(text)
    found = read_huggingface(tmp_path / "config.json", sequence_length=network.sequence_length)
    assert found.dtype == "bf16"
    assert without_correction(found.transformer) == without_correction(network)


def test_the_architectures_that_a_year_trains_are_written() -> None:
    later = {"deepseek_v2", "deepseek_v3", "glm4_moe", "gemma2", "gemma3_text", "gpt_oss"}
    written = {name: kind for name in row_names() if (kind := architecture_of(row(name).transformer))}
    assert set(written.values()) == {"llama", "qwen2", "qwen3", "qwen3_moe", "mixtral", *later}
    assert written["llama3.1-405b"] == "llama"
    assert written["qwen3-235b-a22b"] == "qwen3_moe"
    assert written["gemma3-27b"] == "gemma3_text"
    assert written["gpt-oss-120b"] == "gpt_oss"
    assert config_text(replace(row("gemma2-2b").transformer, has_sinks=True), "bf16") is None
    assert config_text(row("gpt3-175b").transformer, "bf16") is None


def test_deepspeed_gets_the_network_that_it_trains_beside_its_configuration() -> None:
    job = even_job(block_of(row("qwen3-0.6b").transformer), data=4, zero=1)
    found = export("deepspeed", job)
    document = json.loads(found.files["config.json"])
    assert (document["model_type"], document["rope_theta"], document["head_dim"]) == ("qwen3", 1e6, 128)
    assert any("AutoModelForCausalLM.from_config" in note for note in found.notes)
    assert "config.json" not in export("deepspeed", even_job(data=4)).files
