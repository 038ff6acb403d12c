"""A network as a module for torchtitan: read back it is the planned one, in parameters, FLOP, positions and figures."""

from dataclasses import replace
from pathlib import Path

import pytest
from layout_jobs import even_job

from planner.errors import InfeasibleError, SpecError
from planner.exporters import export, network_of
from planner.exporters.export import Job
from planner.exporters.torchtitan_network import MODULE, family_of, module_text, network_of_module
from planner.models.operators import flop_per_sample
from planner.numerics import Routing
from planner.problem import LowPrecision
from planner.transformer import Transformer
from planner.zoo.transformers import block_of, row, row_names, with_mtp_layers

WRITTEN = {name: kind for name in row_names() if (kind := family_of(row(name).transformer))}
FP8 = LowPrecision(name="fp8", recipe="current")


def less_balance(network: Transformer) -> Transformer:
    """The network less how the load of its experts is balanced, which torchtitan does in one way, and its length."""
    experts = network.experts
    if network.rotary is not None:
        network = replace(network, rotary=replace(network.rotary, longest=None))
    if experts is None:
        return network
    chosen = experts.routing
    routing = Routing(score=chosen.score, is_normalised=chosen.is_normalised, scale=chosen.scale, bias=chosen.bias)
    return replace(network, experts=replace(experts, routing=routing))


def longest_of(network: Transformer) -> int:
    """Tokens that its positions are meant for, which are those of a sample where nothing is said."""
    return (network.rotary.longest if network.rotary is not None else None) or network.sequence_length


def with_low(job: Job, low: LowPrecision) -> Job:
    """The job with products in short numbers."""
    return replace(job, problem=replace(job.problem, training=replace(job.problem.training, low=low)))


@pytest.mark.parametrize("name", WRITTEN)
def test_a_network_read_back_is_the_one_that_was_written(name: str) -> None:
    network = row(name).transformer
    found = network_of_module(Path("x.py"), module_text(network, None, head="#", is_compiled=True))
    assert less_balance(found) == less_balance(network)
    assert longest_of(found) == longest_of(network)
    assert found.num_parameters == network.num_parameters
    assert flop_per_sample(found) == flop_per_sample(network)


def test_networks_of_all_its_families_are_written_and_others_are_not() -> None:
    assert set(WRITTEN.values()) == {"llama3", "qwen3", "deepseek_v3", "gpt_oss"}
    for name in ("gpt3-175b", "gemma2-2b", "nemotron-h-8b", "llama4-scout", "glm-4.5", "deepseek-v3.2"):
        assert name not in WRITTEN


def test_biases_and_layers_of_multi_token_prediction_are_read_back() -> None:
    for network in (row("qwen2.5-7b").transformer, with_mtp_layers(row("deepseek-v3").transformer, 1)):
        found = network_of_module(Path("x.py"), module_text(network, None, head="#", is_compiled=True))
        assert less_balance(found) == less_balance(network)
        assert found.num_mtp_layers + found.has_qkv_biases == 1
    assert family_of(with_mtp_layers(row("qwen3-4b").transformer, 1)) is None
    job = even_job(block_of(row("qwen2.5-0.5b").transformer), data=2, zero=3)
    assert any("biases of queries, keys and values" in note for note in export("torchtitan", job).notes)


def test_a_script_and_its_module_are_read_back_together(tmp_path: Path) -> None:
    network = row("mistral-nemo-12b").transformer
    found = export("torchtitan", even_job(block_of(network), data=2, zero=3))
    for name, text in found.files.items():
        (tmp_path / name).write_text(text)
    assert f"--module {MODULE}" in found.files["launch.sh"]
    launch = tmp_path / "launch.sh"
    back = network_of(launch, launch.read_text())
    assert back is not None
    assert (back.num_parameters, back.rotary) == (network.num_parameters, network.rotary)
    (tmp_path / f"{MODULE}.py").write_text("NETWORK = {'family': 'llama3'}")
    with pytest.raises(SpecError, match="says no network"):
        network_of(launch, launch.read_text())


def test_its_own_networks_need_no_module_but_for_other_numbers() -> None:
    job = even_job(block_of(row("qwen3-0.6b").transformer), data=2, zero=3)
    assert set(export("torchtitan", job).files) == {"launch.sh"}
    found = export("torchtitan", with_low(job, FP8))
    assert '("Float8LinearConverter", {"recipe_name": "rowwise"' in found.files[f"{MODULE}.py"]
    assert any("the plan counts current" in note for note in found.notes)
    wide = LowPrecision(name="mxfp8", recipe="mxfp8", wide_layers=2)
    text = export("torchtitan", with_low(job, wide)).files[f"{MODULE}.py"]
    assert '"layers.25.attention"' in text
    assert "layers.26" not in text


def test_what_it_cannot_multiply_so_is_refused() -> None:
    four = LowPrecision(name="nvfp4", recipe="nvfp4")
    mixture = even_job(block_of(replace(row("qwen3-30b-a3b").transformer, num_layers=2)), data=2, zero=3)
    with pytest.raises(InfeasibleError, match="not in nvfp4"):
        export("torchtitan", with_low(mixture, four))
    with pytest.raises(InfeasibleError, match="none of its models has all parts"):
        export("torchtitan", with_low(even_job(data=2), FP8))
