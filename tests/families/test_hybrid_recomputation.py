"""Recomputation by module and by number of layers as a question meets it: blocks, pins, refusals, search, launch."""

from typing import Any
from unittest.mock import patch

import pytest
from hybrid_questions import MOE, TINY, question
from layout_jobs import even_job

import planner
from planner.decisions import LAYOUT
from planner.errors import InfeasibleError, SpecError
from planner.exporters import export
from planner.exporters.megatron import EXPORTERS
from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.hybrid.cost import costs_of
from planner.models.recomputation import MODULE_SETS
from planner.problem import Problem
from planner.ranking import best_plan
from planner.search import Search

pytestmark = pytest.mark.usefixtures("wordless")

LATENT: dict[str, Any] = {
    **MOE,
    "kv_heads": 8,
    "norm": "rms_norm",
    "positions": "rotary",
    "latent_attention": {"query_rank": 256, "key_value_rank": 128, "rope_size": 32, "nope_size": 64, "value_size": 64},
}


def predicted(network: dict[str, Any], batch: int = 8, **block: Any) -> Any:
    layout = {"pipeline": 2, "data": 4, "microbatch": 1, **block}
    asked = question(network, batch=batch, configuration={"hybrid": layout})
    return planner.predict(asked)


def test_a_block_takes_modules_as_a_list_or_a_text_in_any_order() -> None:
    one = predicted(LATENT, recompute="selective", recompute_modules=["mla_up_proj", "moe_act"])
    other = predicted(LATENT, recompute="selective", recompute_modules="moe_act mla_up_proj")
    assert one.memory_bytes == other.memory_bytes
    plain = predicted(LATENT)
    assert one.memory_bytes["activations"] < plain.memory_bytes["activations"]
    assert one.breakdown_s["recompute"] > plain.breakdown_s["recompute"] == 0


@pytest.mark.parametrize(
    ("network", "block", "words"),
    [
        (TINY, {"recompute": "selective", "recompute_modules": ["mla_up_proj"]}, "no layer of the network has mla_up"),
        (TINY, {"recompute": "full", "recompute_modules": ["mlp"]}, "with recompute: selective only"),
        (TINY, {"recompute": "none", "recompute_layers": 1}, "with recompute: full only"),
        (TINY, {"recompute": "full", "recompute_layers": 3}, "fewer than 3 each"),
        (TINY, {"recompute": "selective", "recompute_modules": ["attention"]}, "no set of modules"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(network: dict[str, Any], block: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        predicted(network, **block)


def test_another_program_has_neither() -> None:
    for block in (
        {"recompute": "selective", "recompute_modules": ["mlp"]},
        {"recompute": "full", "recompute_layers": 1},
    ):
        asked = question(TINY, calibration={"program": "nanotron"}, configuration={"hybrid": {"data": 8, **block}})
        with pytest.raises(SpecError, match="nanotron computes"):
            planner.predict(asked)


def chosen(problem: Problem) -> HybridConfiguration:
    found = planner.plan(problem).configuration
    assert isinstance(found, HybridConfiguration)
    return found


def test_modules_that_no_layer_has_are_refused_before_a_grid_is_searched() -> None:
    with (
        patch("planner.families.hybrid.search.searched", side_effect=AssertionError("a grid was searched")),
        pytest.raises(InfeasibleError, match="no layer of the network has layernorm as a module of its own"),
    ):
        best_plan(question(TINY, fix={"recompute_modules": ["layernorm"]}), Search(time_limit_s=60))


def test_a_pin_of_modules_asks_for_selective_recomputation_even_where_they_are_the_usual_ones() -> None:
    for fix in ({"recompute_modules": ["core_attn"]}, {"recompute_modules": ["mlp"]}):
        assert chosen(question(TINY, fix=fix)).recompute == "selective"
    assert chosen(question(TINY, fix={"optimizer_offload_percent": 100})).offload_optimizer
    with pytest.raises(
        SpecError, match=r"recompute_modules: it goes with recompute: selective, and fix.recompute is full"
    ):
        planner.plan(question(TINY, fix={"recompute_modules": ["core_attn"], "recompute": "full"}))


def tight(network: dict[str, Any], share: float, **more: Any) -> Problem:
    """A question whose devices hold so much of the step from what is needed with all computed again up to with nothing."""
    fix: dict[str, Any] = {"tensor_parallel_size": 1, "context_parallel_size": 1, "pipeline_parallel_size": 1}
    fix |= {"data_parallel_size": 4, "microbatch_size": 2, "zero_stage": 1, "expert_parallel_size": 1}
    fix |= {"offload_optimizer": False}
    least, most = (
        predicted(network, batch=32, pipeline=1, microbatch=2, zero=1, recompute=one).memory_bytes["total"]
        for one in ("full", "none")
    )
    limit = f"{least + share * (most - least):.0f} B"
    fix |= more
    return question(network, machines=1, batch=32, fix=fix, constraints={"memory_per_device": limit})


@pytest.mark.parametrize("network", [TINY, LATENT])
def test_no_more_is_computed_again_than_memory_needs(network: dict[str, Any]) -> None:
    """Less room never makes a plan quicker; between nothing and everything some is computed again."""
    plans = [planner.plan(tight(network, share)) for share in (1.0, 0.6, 0.2)]
    seconds = [plan.objective for plan in plans]
    assert seconds == sorted(seconds)
    whole, partly, _ = (plan.configuration for plan in plans)
    assert isinstance(whole, HybridConfiguration)
    assert isinstance(partly, HybridConfiguration)
    assert whole.recompute == "none"
    assert partly.recompute_layers or partly.recompute_modules != "core_attn"


def test_what_is_pinned_is_planned() -> None:
    pinned = tight(LATENT, 1.0, recompute="selective", recompute_modules="moe_act layernorm")
    assert chosen(pinned).recompute_modules == "moe_act layernorm"
    assert chosen(tight(TINY, 1.0, recompute="full", recompute_layers=1)).recompute_layers == 1


def test_sets_that_are_searched_save_more_each_for_more_seconds() -> None:
    cost = costs_of(question(LATENT))[0]
    chosen = [MODULE_SETS[one] for one in cost.module_sets]
    assert chosen
    assert "moe_act" in chosen[0] or "layernorm" in chosen[0]
    assert {"mla_up_proj", "moe"} <= {*chosen[-1]}
    assert not any("core_attn" in one for one in chosen)


@pytest.mark.parametrize(
    ("network", "block", "words"),
    [
        (
            MOE,
            {"recompute": "selective", "recompute_modules": "moe_act layernorm"},
            "--recompute-modules moe_act layernorm",
        ),
        (TINY, {"recompute": "full", "recompute_layers": 1}, "--recompute-method block --recompute-num-layers 1"),
        (TINY, {"recompute": "full"}, "--recompute-method uniform --recompute-num-layers 1"),
    ],
)
def test_a_command_says_it_and_is_read_back(tmp_path: Any, network: dict[str, Any], block: Any, words: str) -> None:
    script = export("megatron", even_job(network, pipeline=2, data=2, **block)).files["launch.sh"]
    assert words in " ".join(script.replace("\\\n", " ").split())
    path = tmp_path / "launch.sh"
    path.write_text(script, encoding="utf-8")
    pins = EXPORTERS["megatron"].degrees(path, script)
    assert {name: pins[LAYOUT[name].key] for name in block} == block


def test_listed_stages_take_modules_as_dealt_ones_do() -> None:
    """Two stages of two layers: the general case and its reduction, which is told by chunks."""
    again: dict[str, Any] = {"recompute": "selective", "recompute_modules": "moe_act layernorm"}
    one = predicted(LATENT, zero=1, **again)
    listed = predicted(LATENT, zero=1, stages=[{"layers": 2}, {"layers": 2}], **again)
    assert listed.iteration_time_s == pytest.approx(one.iteration_time_s)
    assert listed.memory_bytes["total"] == pytest.approx(one.memory_bytes["total"])
    plain = predicted(LATENT, zero=1, stages=[{"layers": 2}, {"layers": 2}])
    assert listed.memory_bytes["total"] < plain.memory_bytes["total"]


@pytest.mark.parametrize(("device", "link"), [("gb200", 180e9), ("gh200-96gb", 360e9), ("b200-sxm", 25e9)])
def test_a_grace_is_reached_by_nvlink(device: str, link: float) -> None:
    """NVLink-C2C has 900 GB/s both ways, for the two devices of a GB200 or the one of a GH200; others have PCIe."""
    machine = {"count": 1, "device": device, "devices": 1 if "gh200" in device else 4, "network": "400 Gbit/s"}
    asked = planner.load({"dnn": {"zoo": "llama3.1-8b", "global_batch": 8}, "cluster": {"machines": [machine]}})
    assert costs_of(asked)[0].host.link_bytes_per_s == pytest.approx(link)
