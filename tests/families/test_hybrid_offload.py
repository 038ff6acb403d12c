"""Activations that wait in host memory, as a question meets it: blocks, pins, refusals, seconds, launch."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hybrid_questions import MOE, RATES, TINY, question, whole_grid
from layout_jobs import even_job
from modern_blocks import LLAMA

import planner
from planner.checks import report_text
from planner.data.fits import transformer_rates
from planner.decisions import LAYOUT
from planner.errors import InfeasibleError, NoAnswerError, SpecError
from planner.exporters import export, megatron
from planner.exporters.bridge import EXPORTERS as BRIDGE
from planner.families.hybrid import search as hybrid_search
from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.hybrid.cost import costs_of
from planner.families.hybrid.grid_search import searched
from planner.families.hybrid.search import plan
from planner.problem import Problem
from planner.search import Search
from planner.solution import Status
from tests.referee.second_physics import check

ALONE: dict[str, Any] = {"data": 4, "microbatch": 2}
FEW: dict[str, Any] = {"tensor_parallel_size": 1, "data_parallel_size": 4, "microbatch_size": 2, "zero_stage": 1}
FEW |= {"context_parallel_size": 1, "pipeline_parallel_size": 1, "offload_optimizer": False}
FEW |= {"expert_parallel_size": 1}
LATENT: dict[str, Any] = {
    **MOE,
    "kv_heads": 8,
    "norm": "rms_norm",
    "positions": "rotary",
    "latent_attention": {"query_rank": 256, "key_value_rank": 128, "rope_size": 32, "nope_size": 64, "value_size": 64},
}
WIDE: dict[str, Any] = {**MOE, "gated": False}  # experts whose kernels no graph holds
GRAPHS: dict[str, Any] = {
    "calibration": {"cuda_graphs": True, "memory_reserve": "0 B"},
    "rates": {**RATES, "low_precision": transformer_rates()["low_precision"]},
}
PINS: dict[str, Any] = {"tensor_parallel_size": 1, "context_parallel_size": 1, "pipeline_parallel_size": 1}


def predicted(calibration: Any = None, host_link: str | None = None, **block: Any) -> Any:
    more = {"calibration": calibration} if calibration else {}
    layout = {"hybrid": {**ALONE, **block}}
    return planner.predict(question(TINY, batch=32, machines=1, host_link=host_link, configuration=layout, **more))


def test_every_layer_on_the_host_takes_what_it_keeps_off_the_device_but_for_one_on_its_way() -> None:
    plain, *held = (predicted(offload_layers=number).memory_bytes for number in range(4))
    kept = [one["activations"] for one in (plain, *held)]
    layer = kept[0] - kept[1]
    assert kept == pytest.approx([kept[0] - number * layer for number in range(4)])
    for one in held:
        assert one["temporary"] == pytest.approx(plain["temporary"] + layer)
        assert one["optimizer"] == plain["optimizer"]


def test_copies_show_as_far_as_computing_does_not_hide_them() -> None:
    """Without waiting nothing is said; more layers never wait less; long copies wait for all but the passes themselves."""
    found = [predicted(offload_layers=number) for number in range(4)]
    assert "activation_offload" not in found[0].breakdown_s
    waits = [one.breakdown_s["activation_offload"] for one in found[1:]]
    assert waits == sorted(waits)
    for one in found:
        assert one.iteration_time_s == pytest.approx(sum(one.breakdown_s.values()))
    # Both passes are shorter than copies of two layers, and of three: the difference is one layer's, there and back.
    plain = found[0].memory_bytes["activations"]
    layer_bytes = plain - found[1].memory_bytes["activations"]
    assert waits[2] - waits[1] == pytest.approx(2 * 4 * layer_bytes / 25e9)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"offload_layers": 4}, "fewer layers than the network's 4"),
        ({"offload_layers": 1, "pipeline": 2, "data": 2}, "without a pipeline only, and there are 2 stages"),
        ({"offload_layers": 1, "recompute": "full"}, "goes with recompute: none"),
        ({"offload_layers": 1, "calibration": {"program": "nanotron"}}, "nanotron keeps activations on the device"),
        ({"offload_layers": 1, "calibration": {"cuda_graphs": True}}, "cuda_graphs: false"),
        ({"offload_modules": "attn_proj"}, "list core_attn, too"),
        ({"offload_modules": ["core_attn", "moe_act"]}, "no layer of the network has an input of moe_act"),
        ({"offload_modules": ["mlp"]}, "no set of modules"),
        ({"offload_modules": "core_attn", "offload_layers": 1}, "by layers or by modules"),
        ({"offload_modules": "core_attn", "recompute": "full"}, "goes with recompute: none or selective"),
        ({"offload_modules": "core_attn", "recompute": "selective"}, "leave core_attn out of one of both"),
        ({"offload_modules": "core_attn", "calibration": {"program": "nanotron"}}, "nanotron keeps activations"),
        ({"offload_modules": "core_attn", "calibration": {"cuda_graphs": True}}, "cuda_graphs: false"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(block: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        predicted(**block)


def test_what_is_pinned_is_planned_with_proof() -> None:
    problem = question(TINY, machines=1, batch=32, fix={**PINS, "activation_offload_layers": 2})
    plan = planner.plan(problem)
    assert isinstance(plan.configuration, HybridConfiguration)
    assert plan.configuration.offload_layers == 2
    assert "activations of 2 layers on the host" in plan.configuration.headline
    assert plan.bound == pytest.approx(plan.objective)
    report = check(problem, plan)
    assert report.is_ok, report_text(report)


def test_a_command_and_a_recipe_say_it_and_are_read_back(tmp_path: Any) -> None:
    job = even_job(TINY, data=2, offload_layers=3)
    for target, name, read in (
        ("megatron", "launch.sh", megatron.EXPORTERS["megatron"].degrees),
        ("megatron-bridge", "recipe.py", BRIDGE["megatron-bridge"].degrees),
    ):
        files = export(target, job).files
        text = files.get(name) or next(one for one in files.values() if "offloading" in one)
        assert "offloading" in text
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        assert read(path, text)[LAYOUT["offload_layers"].key] == 3


def test_a_program_without_it_gets_a_layout_without_it() -> None:
    found = export("torchtitan", even_job(LLAMA, data=2, zero=3, offload_layers=3))
    assert any("keeps activations on the device" in one for one in found.notes)


# -- by module -------------------------------------------------------------------------------------------------------------


def test_inputs_of_attention_and_of_its_last_product_are_four_streams_of_a_layer() -> None:
    """Queries, keys and values, and what attention gives: as many numbers each as the hidden size, of two bytes."""
    plain, away = (predicted(offload_modules=one).memory_bytes for one in ("none", "core_attn attn_proj"))
    stream_bytes = 2 * TINY["hidden"] * TINY["sequence_length"] * ALONE["microbatch"]
    layers, four = TINY["layers"], 4 * stream_bytes
    assert plain["activations"] - away["activations"] == pytest.approx(layers * four)
    assert away["temporary"] - plain["temporary"] == pytest.approx(four)  # of one layer, on its way


@pytest.mark.parametrize(("pipeline", "passes"), [(1, 4), (2, 4 + 1)])
def test_a_stage_waits_in_every_pass_and_while_the_pipeline_fills(pipeline: int, passes: int) -> None:
    """Where passes are shorter than copies, more bytes take as much longer: both ways, of each pass of a stage."""
    block: dict[str, Any] = {"data": 4 // pipeline, "pipeline": pipeline, "microbatch": 2 * pipeline}
    sets = ("core_attn", "core_attn attn_proj")
    few, many = (predicted(**block, host_link="1 GB/s", offload_modules=one) for one in sets)
    stream_bytes = 2 * TINY["hidden"] * TINY["sequence_length"] * block["microbatch"]
    stage_bytes = stream_bytes * TINY["layers"] / pipeline
    longer_s = many.breakdown_s["activation_offload"] - few.breakdown_s["activation_offload"]
    assert longer_s == pytest.approx(2 * passes * stage_bytes / 1e9)
    assert many.iteration_time_s == pytest.approx(sum(many.breakdown_s.values()))


def test_beside_graphs_experts_inputs_alone_wait_and_only_where_no_graph_holds_them() -> None:
    def held(network: dict[str, Any], modules: str) -> float:
        layout = {"hybrid": {**ALONE, "offload_modules": modules}}
        asked = question(network, batch=32, machines=1, configuration=layout, **GRAPHS)
        return float(planner.predict(asked).memory_bytes["activations"])

    assert held(WIDE, "expert_fc1 moe_act") < held(WIDE, "moe_act") < held(WIDE, "none")
    with pytest.raises(SpecError, match="but for expert_fc1 and moe_act, which are not captured"):
        held(WIDE, "core_attn")
    with pytest.raises(SpecError, match="cuda_graphs: false"):
        held(MOE, "moe_act")


@pytest.mark.parametrize("pin", [{"activation_offload_modules": ["core_attn"]}, {"activation_offload_layers": 1}])
def test_pinned_copies_beside_graphs_conflict_with_the_graphs_and_with_no_memory(pin: dict[str, Any]) -> None:
    with pytest.raises(InfeasibleError, match="it goes with calibration") as refused:
        planner.plan(question(WIDE, batch=32, machines=1, fix={**FEW, **pin}, **GRAPHS))
    rows = refused.value.conflicts[0].relaxations
    assert [one.field for one in rows] == [f"fix.{next(iter(pin))}", "calibration.cuda_graphs"]
    assert (rows[1].values, rows[1].is_enough) == (("false",), True)


def short_of_memory(network: dict[str, Any], link: str | None, *, is_captured: bool = False) -> Problem:
    """A question that a few layers' activations, computed again or on the host, let fit."""
    layouts: list[dict[str, Any]] = [{}, {"recompute": "full"}]
    more: dict[str, Any] = {"machines": 1, "batch": 32, **(GRAPHS if is_captured else {})}
    free, full = (
        planner.predict(question(network, configuration={"hybrid": {**ALONE, "zero": 1, **one}}, **more))
        for one in layouts
    )
    # Of experts alone less than half of it waits.
    most = 0.8 if is_captured else 0.5
    limit = f"{most * free.memory_bytes['total'] + (1 - most) * full.memory_bytes['total']:.0f} B"
    return question(network, memory=limit, host_link=link, fix=FEW, **more)


@pytest.mark.usefixtures("wordless")
@pytest.mark.parametrize(("network", "is_captured"), [(TINY, False), (LATENT, False), (WIDE, True)])
def test_copies_take_the_place_of_computing_again_where_the_link_is_known_and_quick(
    network: dict[str, Any], is_captured: bool
) -> None:
    again = planner.plan(short_of_memory(network, None, is_captured=is_captured))
    slow, quick = (short_of_memory(network, link, is_captured=is_captured) for link in ("1 GB/s", "900 GB/s"))
    away = planner.plan(quick)
    assert isinstance(away.configuration, HybridConfiguration)
    assert isinstance(again.configuration, HybridConfiguration)
    assert again.configuration.is_recomputed
    assert not again.configuration.offload_layers
    assert not again.configuration.has_modules_away
    assert away.configuration.offload_layers or away.configuration.has_modules_away
    assert away.objective < again.objective
    assert away.bound == pytest.approx(away.objective)
    assert any("of the memory of a host" in one for one in away.warnings)
    report = check(quick, away)
    assert report.is_ok, report_text(report)
    assert planner.plan(slow).objective == pytest.approx(again.objective)


def tight(share: float, **pins: Any) -> tuple[Problem, float]:
    """A question of tight memory, and the seconds of its best even layout, activations on the host among them.

    ``share``: how far up the devices' memory stands between that of the smallest and of the largest layout.
    """
    network = {**TINY, "layers": 8, "hidden": 2048, "sequence_length": 4096}
    asked = question(network, machines=1, devices=2, host_link="25 GB/s", fix=pins)
    cost = replace(costs_of(asked)[0], opens_offload=True)
    layouts = cost.layouts(whole_grid(cost))
    held = cost.memory(layouts)["total"]
    limit_bytes = float(np.quantile(np.unique(held), share))
    seconds = cost.seconds(layouts)[held <= limit_bytes].min()
    return replace(asked, limits=replace(asked.limits, memory_per_device_bytes=limit_bytes)), float(seconds)


@pytest.mark.usefixtures("wordless")
@pytest.mark.parametrize(
    ("share", "pins"), [*((share, {"schedule": "gpipe"}) for share in (0.05, 0.1, 0.5)), (0.7, {"num_stages": 1})]
)
def test_the_best_layout_of_tight_memory_is_planned_whether_it_has_activations_on_the_host(
    share: float, pins: dict[str, Any]
) -> None:
    asked, seconds = tight(share, **pins)
    found = plan(asked, Search())
    assert found.status is Status.OPTIMAL
    assert found.objective == pytest.approx(seconds)


@pytest.mark.usefixtures("wordless")
def test_a_search_that_ends_before_activations_on_the_host_are_looked_at_proves_nothing_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0

    def late(*given: Any, **named: Any) -> Any:
        nonlocal now_s
        answer, now_s = searched(*given, **named), 9.0
        return answer

    monkeypatch.setattr(hybrid_search, "searched", late)
    asked, seconds = tight(0.2, schedule="gpipe")
    found = plan(asked, Search(time_limit_s=5.0, clock=lambda: now_s))
    assert found.status is Status.FEASIBLE
    assert found.bound <= seconds < found.objective
    now_s = 0.0
    asked, _ = tight(0.03, schedule="gpipe", recompute="none", offload_optimizer=False)
    with pytest.raises(NoAnswerError):  # there is one, with activations on the host
        plan(asked, Search(time_limit_s=5.0, clock=lambda: now_s))


def test_what_fits_stays_as_it_is() -> None:
    links = (None, "900 GB/s")
    plans = [planner.plan(question(TINY, machines=1, batch=32, host_link=one)) for one in links]
    assert plans[0].configuration == plans[1].configuration


def test_modules_are_launched_and_read_back(tmp_path: Any) -> None:
    named = "core_attn attn_proj"
    job = even_job(TINY, data=2, pipeline=2, offload_modules=named)
    for target, name, read in (
        ("megatron", "launch.sh", megatron.EXPORTERS["megatron"].degrees),
        ("megatron-bridge", "recipe.py", BRIDGE["megatron-bridge"].degrees),
    ):
        text = next(one for one in export(target, job).files.values() if "offload" in one)
        assert "fine" in text
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        assert read(path, text)[LAYOUT["offload_modules"].key] == named


@pytest.mark.parametrize("recipe", ["delayed", "current"])
def test_delayed_scales_bar_two_modules_from_being_computed_again(recipe: str) -> None:
    problem = planner.load(
        {
            "dnn": {"transformer": MOE, "global_batch": 8, "dtype": "fp8", "fp8_recipe": recipe},
            "cluster": {"machines": [{"count": 1, "device": "h100-sxm", "devices": 8, "inside": "nvlink-4"}]},
            "configuration": {"hybrid": {"data": 8, "recompute": "selective", "recompute_modules": "moe_act"}},
        }
    )
    if recipe == "delayed":
        with pytest.raises(SpecError, match="layernorm and moe_act are not computed again with fp8_recipe: delayed"):
            planner.predict(problem)
    else:
        assert planner.predict(problem).breakdown_s["recompute"] > 0


def test_bytes_and_seconds_are_linear_in_how_much_of_an_optimiser_is_on_the_host() -> None:
    nothing = predicted(zero=1)
    some, all_of_it = (predicted(zero=1, offload_optimizer=True, offload_percent=one) for one in (40, 100))
    for name in ("memory_bytes", "breakdown_s"):
        without, mixed, whole = (getattr(one, name)["optimizer"] for one in (nothing, some, all_of_it))
        assert mixed == pytest.approx(0.6 * without + 0.4 * whole)
    assert all_of_it.memory_bytes["optimizer"] == 0 < all_of_it.breakdown_s["optimizer"]
    with pytest.raises(SpecError, match="no optimiser is on the host, and 40 percent"):
        predicted(offload_percent=40)


def test_a_part_of_an_optimiser_that_is_pinned_is_planned_checked_and_launched(tmp_path: Any) -> None:
    problem = question(TINY, machines=1, fix={**PINS, "offload_optimizer": True, "optimizer_offload_percent": 40})
    plan = planner.plan(problem)
    assert isinstance(plan.configuration, HybridConfiguration)
    assert plan.configuration.offload_percent == 40
    report = check(problem, plan)
    assert report.is_ok, report_text(report)
    job = even_job(TINY, data=2, zero=1, offload_optimizer=True, offload_percent=40)
    for target, name, read in (
        ("megatron", "launch.sh", megatron.EXPORTERS["megatron"].degrees),
        ("megatron-bridge", "recipe.py", BRIDGE["megatron-bridge"].degrees),
    ):
        text = next(one for one in export(target, job).files.values() if "fraction" in one)
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        assert read(path, text)[LAYOUT["offload_percent"].key] == 40


@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_a_program_without_shares_gets_all_of_an_optimiser_on_the_host(recompute: str) -> None:
    job = even_job(TINY, data=2, zero=1, offload_optimizer=True, offload_percent=40, recompute=recompute)
    assert any("all of an optimiser's state on the host" in one for one in export("deepspeed", job).notes)
