"""What keeps a plan from being run stands under its headline: no program that launches it, memory that is full."""

from dataclasses import replace
from math import inf
from typing import Any
from unittest.mock import patch

import pytest
from answers import plan_text

import planner
from planner.errors import InfeasibleError, SpecError
from planner.exporters import buckets, data_parallel
from planner.exporters.export import Job, OtherDeviceError, export, refusal_of
from planner.plan import Plan
from planner.planning import _best_launchable, _narrowed, launchable, little_memory, plan_of, planned
from planner.problem import Problem
from planner.ranking import best_plan
from planner.recommendation import Refusals
from planner.search import Search
from planner.solution import Status

NETWORK = {"name": "machines", "count": 4, "network": "1 Gbit/s", "devices": 1, "device": "rtx-2080-ti"}
SERVED: dict[str, Any] = {
    "dnn": {"zoo": "alexnet", "global_batch": 128},
    "cluster": {"machines": [NETWORK]},
    "objective": "iteration_time",
}


@pytest.fixture(scope="module")
def asked() -> Problem:
    return planner.load({**SERVED, "families": ["model_replicas"]})


@pytest.fixture(scope="module")
def plan(asked: Problem) -> Plan:
    return planner.plan(asked)


def test_no_winner_that_nothing_can_launch_is_shown_without_saying_so_at_the_top(asked: Problem, plan: Plan) -> None:
    assert plan.family == "model_replicas"
    lines = plan_text(plan, asked).splitlines()
    assert lines[2].startswith("Warning: no target of `planner export` can launch this plan: ")
    assert "keeps the parameters on servers" in lines[2]
    assert lines[3].startswith("Best plan found that can be launched: ")


def test_the_plan_shown_instead_is_one_that_a_target_launches(plan: Plan) -> None:
    family = plan.instead.partition("--families ")[2].split()[0]
    other = planner.plan(planner.load({**SERVED, "families": [family]}))
    assert not other.cautions
    assert f"{family} on {other.configuration.headline}, iteration time" in plan.instead
    targets = {"parameter_server": "tfjob", "pipeline": "deepspeed", "all_reduce": "ddp"}
    assert planner.export(other, targets[family]).files


def test_what_can_be_launched_on_two_kinds_of_machines_uses_both_where_that_is_best() -> None:
    """No target launches replicas that do unlike numbers of micro-batches; stages on both kinds are launched."""
    sizes = {"layers": 2, "hidden": 1024, "heads": 16, "vocabulary": 32_000, "sequence_length": 1024}
    kinds = {"h100-sxm": "nvlink-4", "a100-sxm4-80gb": "nvlink-3"}
    machines = [
        {"name": name, "count": 1, "device": name, "devices": 2, "inside": inside, "network": "100 Gbit/s"}
        for name, inside in kinds.items()
    ]
    question = {"dnn": {"transformer": sizes, "global_batch": 60, "dtype": "bf16"}, "cluster": {"machines": machines}}
    problem = planner.load({**question, "families": ["hybrid"], "constraints": {"devices": 4}})
    unlaunched = planned(problem, Search(time_limit_s=60))
    assert {one.num_microbatches for one in unlaunched.configuration.replicas} == {1, 2}  # type: ignore[attr-defined]
    found = launchable(problem, unlaunched, Search(time_limit_s=60))
    assert "which --json lists" in found.instead
    (other,) = (one for one in found.alternatives if one.configuration.num_devices == 4)  # type: ignore[union-attr]
    assert other.name.removeprefix("hybrid: ") in found.instead
    assert {stage.machines for stage in other.configuration.stages} == {*kinds}  # type: ignore[union-attr]


def test_a_network_that_megatron_lm_lacks_is_launched_without_context_ranks() -> None:
    """DeepSpeed trains any network, but splits no sequence over ranks that do not divide the heads."""
    sizes = {"layers": 4, "hidden": 1536, "heads": 6, "vocabulary": 32_000, "sequence_length": 16_384}
    block = {"norm": "rms_norm", "gated": True, "positions": "rotary", "norm_position": "output", "biases": False}
    machines = [{"count": 1, "machine": "hgx-h100"}]
    question = {"dnn": {"transformer": {**sizes, **block}, "global_batch": 2, "dtype": "bf16"}, "families": ["hybrid"]}
    problem = planner.load({**question, "cluster": {"machines": machines}})
    split = planned(problem, Search(time_limit_s=60))
    assert split.configuration.context == 4  # type: ignore[attr-defined]
    found = launchable(problem, split, Search(time_limit_s=60))
    assert found.instead.endswith("ask for it with --families hybrid and fix.context_parallel_size: 1")
    pinned = planner.plan(
        planner.load({**question, "cluster": {"machines": machines}, "fix": {"context_parallel_size": 1}})
    )
    assert not pinned.cautions
    assert pinned.configuration.headline in found.instead


def test_it_is_said_where_the_search_was_cut_off_of_families_that_nobody_asked_for(
    asked: Problem, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = "families that were not asked for were searched in part only"
    monkeypatch.setattr("planner.planning._MOST_OTHERS", 0)
    assert "in part only" not in plan.instead
    assert planner.plan(asked).instead.endswith(cut)


def test_the_best_plan_of_several_kinds_is_searched_for_in_all_of_the_time(plan: Plan) -> None:
    """What can be launched is looked for in the midst of the search, which goes on, and only where the best so far cannot be launched."""
    machines = [{"name": one, "device": one, "devices": 2} for one in ("v100-sxm2-16g", "a100-sxm4-40gb")]
    problem = planner.load({**SERVED, "cluster": {"machines": machines}})
    known = replace(planner.plan(problem), objective=inf)

    def looked(best: Plan) -> tuple[int, Any]:
        now_s = [0.0]

        def searched(problem: Problem, search: Search) -> Plan:
            search.keep(lambda: best)
            for now_s[0] in (0.0, 80.0, 99.0):
                assert not search.is_late
            now_s[0] = 100.0
            assert search.is_late
            return best

        with (
            patch("planner.planning.planned", searched),
            patch("planner.planning._best_launchable", return_value=((known, "so"), False)) as looks,
            patch("planner.planning.answered") as answer,
        ):
            plan_of(problem, Search(time_limit_s=100.0, clock=lambda: now_s[0]))
        return looks.call_count, answer.call_args.kwargs["earlier"]

    assert looked(plan) == (1, [(known, "so")])
    assert looked(known) == (0, [(known, "its configuration, which --json lists")])


def test_families_are_asked_before_tries_run_out_on_pins(plan: Plan) -> None:
    kinds = ("v100-sxm2-16g", "v100-sxm2-32g", "a100-sxm4-40gb", "a100-sxm4-80gb", "h100-sxm")
    machines = [{"name": one, "device": one, "devices": 2, "network": "100 Gbit/s"} for one in kinds]
    problem = planner.load({**SERVED, "cluster": {"machines": machines}, "families": ["pipeline", "parameter_server"]})
    given = replace(plan, family="pipeline", status=Status.FEASIBLE, alternatives=(), least_by_family={})
    search = Search(time_limit_s=60)
    assert search.part(0).is_late  # a part was cut short, so that a narrower question may be answered better
    with patch("planner.planning.best_plan", side_effect=SpecError("none")) as searched:
        assert _best_launchable(problem, given, search, Refusals(problem=problem))[0] is None
    asked = [call.args[0].families for call in searched.call_args_list]
    assert ("parameter_server",) in asked
    assert "all_reduce" in asked[-1]


def test_the_warning_is_in_the_document_too(plan: Plan) -> None:
    assert plan.to_dict()["warnings"][:2] == [*plan.cautions, plan.instead]


def test_a_plan_that_can_be_launched_has_no_such_warning() -> None:
    found = planner.plan(planner.load({**SERVED, "families": ["all_reduce"]}))
    assert found.cautions == ()
    assert found.instead == ""


def test_an_interleaved_pipeline_is_not_the_last_word_where_only_1f1b_can_be_launched() -> None:
    spec = {
        "dnn": {"zoo": "llama2-7b", "global_batch": 64},
        "cluster": {"machines": [{"count": 1, "devices": 8, "device": "h100-sxm"}]},
        "families": ["pipeline"],
        "fix": {"num_stages": 8},
    }
    found = planner.plan(planner.load(spec))
    assert found.configuration.to_document()["schedule"] == "interleaved"
    assert "a device has one stage" in found.cautions[0]
    assert "ask for it with its configuration, which --json lists" in found.instead
    (other,) = (one for one in found.alternatives if one.configuration and one.configuration.headline in found.instead)
    assert "1f1b" in other.name
    chosen = replace(found, configuration=other.configuration)  # type: ignore[arg-type]
    assert planner.export(chosen, "deepspeed").files


def test_a_proven_plan_is_not_searched_for_again_by_a_question_that_it_answers() -> None:
    spec = {
        "dnn": {"zoo": "alexnet", "batch_per_device": 32},
        "cluster": {"machines": [{**NETWORK, "count": 3, "network": "10 Gbit/s"}]},
        "families": ["pipeline", "all_reduce"],
    }
    problem = planner.load(spec)
    with patch("planner.planning.best_plan", wraps=best_plan) as searched:
        found = planner.plan(problem)
    assert found.status is Status.OPTIMAL
    assert found.configuration.to_document()["schedule"] == "1f1b"
    assert "all its stages have as many replicas" in found.cautions[0]
    assert [call.args[0].families for call in searched.call_args_list] == [("pipeline", "all_reduce"), ("pipeline",)]
    assert [bool(call.args[1].skipped) for call in searched.call_args_list] == [False, True]
    best = planned(problem, Search())
    again = launchable(problem, replace(best, least_by_family={}), Search())  # searches all_reduce once more
    assert launchable(problem, best, Search()) == again
    assert again.instead == found.instead != ""


def test_a_plan_that_is_not_proven_is_searched_for_again_only_where_a_limit_cut_its_search_short() -> None:
    """It would be the answer once more."""
    question = {"dnn": {"zoo": "bert-base", "global_batch": 8}, "cluster": {"machines": [{"machine": "hgx-h100"}]}}
    problem = planner.load({**question, "families": ["hybrid"]})
    best = planned(problem, Search())
    assert best.configuration.context == 1  # type: ignore[attr-defined]
    open_one = replace(best, status=Status.FEASIBLE)
    asked = [
        [one.fixed for one, _ in _narrowed(problem, given, frozenset(), is_whole=is_whole)]
        for given, is_whole in ((best, False), (open_one, True), (open_one, False))
    ]
    assert asked == [[], [], [{"context_parallel_size": 1}]]


@pytest.mark.parametrize(
    ("left_bytes", "is_little"), [(184 * 2**20, True), (2.3 * 2**30, True), (2.5 * 2**30, False), (-1.0, False)]
)
def test_memory_that_is_all_but_full_is_not_passed_over(left_bytes: float, is_little: bool) -> None:
    machines = [{"count": 1, "devices": 8, "device": "h100-sxm"}]
    problem = planner.load({"dnn": {"zoo": "megatron-1.7b", "global_batch": 64}, "cluster": {"machines": machines}})
    prediction = planner.plan(problem).prediction
    limit = prediction.memory_bytes["limit"]
    full = replace(prediction, memory_bytes={"total": limit - left_bytes, "limit": limit})
    assert bool(little_memory(problem, full)) == is_little
    if left_bytes == 184 * 2**20:
        assert "only 184 MiB of 80 GiB stay free" in little_memory(problem, full)[0]


def test_an_unknown_target_is_refused_before_the_plan_is_read_and_names_people_use_are_known(tmp_path: Any) -> None:
    missing = tmp_path / "no-such-plan.json"
    with pytest.raises(SpecError, match=r"'unknown' is not a known target. Targets: ddp, horovod"):
        planner.export(missing, "unknown")
    for name in ("megatron-lm", "Megatron_LM", "megatron", "pytorch-ddp", "DDP"):
        with pytest.raises(SpecError, match="there is no such file"):
            planner.export(missing, name)


def test_a_question_whether_a_plan_can_be_launched_searches_for_no_sizes_of_buffers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("of 50,000 layers that takes minutes")

    monkeypatch.setattr(buckets, "best_cap", refuse)
    monkeypatch.setattr(data_parallel, "best_size", refuse)
    problem = planner.load({**SERVED, "families": ["all_reduce"]})
    found = planner.plan(problem)
    assert not found.cautions
    for target in ("ddp", "horovod", "accelerate"):
        assert export(target, Job(problem=problem, plan=found, is_probe=True)).files


def test_that_no_plan_can_be_launched_is_not_said_beside_a_safer_one_that_can() -> None:
    machines = {"count": 32, "device": "h100-sxm", "devices": 8, "network": "400 Gbit/s", "nics": 8, "latency": "5 us"}
    dnn = {"zoo": "gemma3-27b-vision", "global_batch": 64, "dtype": "bf16", "optimizer": "adam"}
    question = {"dnn": dnn, "cluster": {"machines": [machines]}, "families": ["hybrid"]}
    plan = planner.plan(question | {"objective": "iteration_time"})
    assert plan.cautions[0].startswith("no target of `planner export` can launch this plan: with megatron")
    assert plan.recommended is not None
    assert plan.recommended.reasons[0].startswith("a target of `planner export` can launch it")
    assert not any("was found" in line for line in [*plan.cautions, plan.instead])


def test_on_tpus_what_maxtext_runs_is_found_and_no_command_of_megatron_is_printed() -> None:
    sizes = {"layers": 24, "hidden": 3072, "heads": 24, "vocabulary": 32_000, "sequence_length": 4096}
    llama = {"feed_forward": 8192, "gated": True, "positions": "rotary", "norm": "rms_norm", "biases": False}
    found = planner.plan(
        {
            "dnn": {"transformer": {**sizes, **llama, "tied_embeddings": False}, "global_batch": 16, "dtype": "bf16"},
            "cluster": {"machines": [{"count": 1, "device": "tpu-v5e", "devices": 8}]},
            "families": ["hybrid"],
            "objective": "iteration_time",
        }
    )
    assert found.status is Status.OPTIMAL
    assert (found.cautions, found.recommended) == ((), None)
    lines = [line for line in found.explanation if "torchrun" in line or "Megatron-LM" in line]
    assert lines == [one for one in lines if one.startswith("no command is printed for tpu-v5e: ")] != []


@pytest.mark.parametrize("family", ["hybrid", "pipeline"])
def test_samples_of_a_device_are_no_whole_number_where_the_batch_does_not_divide(family: str) -> None:
    sizes = {"layers": 3, "hidden": 256, "heads": 4, "vocabulary": 1000, "sequence_length": 128}
    machine = {"count": 1, "device": "h100-sxm", "devices": 3}
    question = {"dnn": {"transformer": sizes, "global_batch": 4}, "cluster": {"machines": [machine]}}
    fixed = {"families": [family], "objective": "iteration_time", "fix": {"num_devices": 3, "num_stages": 3}}
    assert planner.plan({**question, **fixed}).prediction.details["batch_per_device"] == pytest.approx(4 / 3)


def test_on_tpus_the_reason_is_of_the_program_that_runs_there() -> None:
    asked = {
        "dnn": {"zoo": "llama3.2-1b", "global_batch": 16, "dtype": "fp8"},
        "cluster": {"machines": [{"count": 1, "device": "tpu-v7", "devices": 4}]},
        "families": ["hybrid"],
        "objective": "iteration_time",
    }
    problem = planner.load(asked)
    plan = planner.plan(problem)
    assert plan.cautions[0].endswith("with maxtext, none of its blocks has this scaling of rotary positions")
    recommended = [line for line in plan_text(plan, problem).splitlines() if "off by up to" in line]
    assert all("others on its devices are off by" in line for line in recommended)  # of such plans none was measured


def test_where_no_program_runs_on_the_devices_what_starts_machines_does_not_give_the_reason(plan: Plan) -> None:
    def export(name: str, job: Job) -> None:
        if name in ("megatron", "deepspeed", "torchtitan", "accelerate", "megatron-bridge", "primus", "maxtext"):
            raise OtherDeviceError(f"{name} cannot run this plan: it runs on other devices. Take some.")
        raise InfeasibleError(f"{name} cannot run this plan: it starts nothing here. Take another.")

    with patch("planner.exporters.export.export", export):
        refusal = refusal_of(Job(problem=planner.load(SERVED), plan=replace(plan, family="hybrid")))
    assert refusal == "with megatron, it runs on other devices"
