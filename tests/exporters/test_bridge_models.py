"""Gemma 2 and 3 and Llama 4 as Megatron-Bridge's own models: read back they are the planned networks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from layout_jobs import even_job

from planner.errors import InfeasibleError, SpecError
from planner.exporters import degrees_of, export, network_of, reader_of
from planner.transformer import Transformer
from planner.zoo.transformers import block_of, row

PROVIDERS = {
    "gemma2-2b": "Gemma2ModelProvider",
    "gemma3-1b": "Gemma3ModelProvider",
    "gemma3-27b": "Gemma3ModelProvider",
}
PROVIDERS |= {"llama4-scout": "Llama4ModelProvider", "llama4-maverick": "Llama4ModelProvider"}
RECIPE = Path("recipe.py")


def short(name: str) -> Transformer:
    """A network of the zoo with samples as long as its windows."""
    network = row(name).transformer
    assert network.window is not None
    return replace(network, sequence_length=network.window, num_positions=network.window)


def recipe_of(network: Transformer, **decisions: Any) -> tuple[str, tuple[str, ...]]:
    found = export("megatron-bridge", even_job(block_of(network), **{"tensor": 4, "data": 16, "zero": 3, **decisions}))
    return found.files["recipe.py"], found.notes


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_model_of_its_own_is_read_back(name: str) -> None:
    network = short(name)
    degrees = {"tensor": 1, "data": 32, "expert": 16} if network.experts is not None else {}
    text, notes = recipe_of(network, recompute="full", sequence_parallel=not degrees, **degrees)
    assert f"PROVIDER = {PROVIDERS[name]}" in text
    found, pins = network_of(RECIPE, text), degrees_of(RECIPE, text)
    assert found is not None
    assert pins is not None
    assert pins[1]["data_parallel_size"] == (degrees or {"data": 16})["data"]
    if name == "gemma2-2b":  # whose windows stand one layer later there
        assert found.mixers == ("attention", "window")
        found = replace(found, mixers=network.mixers)
    assert found.numerics.query_scalar == pytest.approx(network.numerics.query_scalar)
    numerics = replace(found.numerics, query_scalar=network.numerics.query_scalar)
    if name == "llama4-scout":  # its constant, which a note names
        assert found.rotary is not None
        assert found.rotary.scaling is not None
        scaling = replace(found.rotary.scaling, high_frequency_factor=1)
        found = replace(found, rotary=replace(found.rotary, scaling=scaling))
        assert any("high frequency factor 1 of the scaling" in note for note in notes)
        reader = reader_of(RECIPE, text)
        assert reader is not None
        assert "high_frequency_factor 4" in reader[1].training(RECIPE, text).warnings[0]
    assert replace(found, numerics=numerics) == network


def test_only_llama_4_is_said_to_have_other_constants_of_its_scaling_than_are_read() -> None:
    network = row("llama3.1-8b").transformer
    assert network.rotary is not None
    assert network.rotary.scaling is not None
    scaling = replace(network.rotary.scaling, factor=16.0)
    text, _ = recipe_of(replace(network, rotary=replace(network.rotary, scaling=scaling)))
    found, reader = network_of(RECIPE, text), reader_of(RECIPE, text)
    assert found is not None
    assert found.rotary is not None
    assert reader is not None
    assert found.rotary.scaling == scaling
    assert not reader[1].training(RECIPE, text).warnings


def test_what_a_model_does_otherwise_is_noted() -> None:
    _, notes = recipe_of(short("gemma2-2b"), recompute="full")
    assert any("one layer later" in note for note in notes)
    assert any("no fused kernel: scores take" in note for note in notes)
    assert not any("cap of" in note or "norms" in note for note in notes)


def test_scores_that_a_device_does_not_hold_and_samples_that_are_split_are_refused() -> None:
    long = replace(row("gemma2-2b").transformer, sequence_length=65536, num_positions=65536)
    with pytest.raises(InfeasibleError, match="of scores do not fit"):
        recipe_of(long, recompute="full", tensor=1, data=64)
    with pytest.raises(InfeasibleError, match="takes whole samples"):
        recipe_of(short("gemma2-2b"), context=2, context_method="all_gather", data=8, recompute="full")


@pytest.mark.parametrize(
    ("name", "old", "new", "why"),
    [
        ("gemma2-2b", '"window_size": [4095, 0]', '"window_size": 7', "is no window"),
        ("gemma3-1b", '"interleaved_attn_pattern": [5, 1]', '"interleaved_attn_pattern": 5', "two numbers"),
        ("gemma3-1b", '"rope_scaling_factor": 1.0', '"rope_scaling_factor": "x"', "no number above 0"),
        ("llama4-scout", '"nope_layer_interval": 4', '"nope_layer_interval": "x"', "no whole number"),
    ],
)
def test_a_damaged_field_is_refused_with_its_place(name: str, old: str, new: str, why: str) -> None:
    degrees = {"tensor": 1, "data": 32, "expert": 16} if name.startswith("llama4") else {}
    text, _ = recipe_of(short(name), recompute="full", **degrees)
    assert old in text
    with pytest.raises(SpecError, match=why):
        network_of(RECIPE, text.replace(old, new))
