"""The family hybrid: given layouts, refusals with the nearest values, plans, pins, limits, and what is printed."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hybrid_questions import MOE, RATES, TINY, given_layout, question
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.checks import limits_kept
from planner.decisions import pinnable_keys
from planner.dnn import Dnn
from planner.errors import InfeasibleError, NoAnswerError, SpecError
from planner.families.hybrid import family as hybrid
from planner.families.hybrid.configuration import ORDER_NAMES, HybridConfiguration
from planner.families.hybrid.cost import costs_of
from planner.families.hybrid.search import frontier, plan
from planner.models.tiers import ORDERS
from planner.perturb import with_memory
from planner.plan import Goal, Plan
from planner.problem import Problem
from planner.search import Search
from planner.solution import Status
from planner.units import Dimension, parse
from tests.referee.second_physics import hybrid as checks


def planned(problem: Problem, **search: Any) -> Plan:
    return plan(problem, Search(**search))


@cache
def free_plan() -> Plan:
    """The plan where nothing is asked but the least."""
    return planned(question())


# -- given layouts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transformer", "block", "field", "message", "nearest"),
    [
        (TINY, {"tensor": 3}, "tensor", "8 heads do not divide", "2 or 4"),
        (
            {**TINY, "kv_heads": 2, "heads": 12, "head_size": 64, "feed_forward": 3072},
            {"tensor": 3},
            "tensor",
            "2 heads of keys",
            "2 or 4",
        ),
        ({**TINY, "feed_forward": 1000}, {"tensor": 16}, "tensor", "8 heads do not", "8"),
        ({**TINY, "feed_forward": 1002}, {"tensor": 4}, "tensor", "1,002 columns of the feed", "2"),
        (TINY, {"context": 3}, "context", "1,024 tokens does not split into 2 equal pieces", "2 or 4"),
        (TINY, {"pipeline": 5}, "pipeline", "4 layers are fewer than 5 stages", "4"),
        (TINY, {"pipeline": 2, "interleave": 4}, "interleave", "2 stages x 4 chunks", "3"),
        (TINY, {"interleave": 2}, "interleave", "there is one stage", "1"),
        (TINY, {"pipeline": 2, "interleave": 2, "schedule": "gpipe"}, "interleave", "with the schedule 1f1b", "1"),
        (TINY, {"pipeline": 2, "interleave": 2, "microbatch": 8}, "interleave", "1 is none of 2", "1"),
        (TINY, {"expert": 2}, "expert", "has no experts", "1"),
        (MOE, {"expert": 3, "data": 8}, "expert", "4 experts do not spread", "2 or 4"),
        (MOE, {"expert": 8, "data": 8}, "expert", "4 experts do not spread", "4"),
        (MOE, {"expert": 4, "data": 2}, "expert", "does not divide the 1 tensor x 1 context x 2 data", "2"),
        (TINY, {"data": 3}, "data", "a batch of 8 samples does not divide by 3", "2 or 4"),
        (TINY, {"data": 2, "microbatch": 3}, "microbatch", "x micro-batches of 3", "2 or 4"),
        (TINY, {"pipeline": 2, "zero": 3}, "zero", "refuse with a pipeline", "1"),
        (TINY, {"tensor": 8, "data": 2}, "data", "16 devices; there are 8", "1"),
        (TINY, {"sequence_parallel": True}, "sequence_parallel", "the tensor degree is 1", "false"),
        (TINY, {"zero": 2, "data": 2, "offload_optimizer": True}, "offload_optimizer", "ZeRO 0 and 1", "false"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_the_rule_and_the_nearest_values(
    transformer: dict[str, Any], block: dict[str, Any], field: str, message: str, nearest: str
) -> None:
    with pytest.raises(SpecError) as caught:
        given_layout(question(transformer), **block)
    (fault,) = caught.value.faults
    assert fault.field == f"configuration.hybrid.{field}"
    assert message in fault.problem
    assert fault.mend.rstrip(".").endswith(nearest)
    if not isinstance(block[field], bool) and field != "data":
        for value in nearest.split(" or "):  # each mends at least what was told
            try:
                given_layout(question(transformer), **{**block, field: int(value)})
            except SpecError as error:
                assert message not in str(error)


def test_a_batch_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(SpecError, match="dnn asks for a batch of 8"):
        given_layout(question(), global_batch_size=16)


def test_a_network_that_is_no_transformer_is_refused_with_the_reason() -> None:
    found = question()
    stranger = replace(found, dnn=Dnn("one layer", [(found.dnn.layers[0], ())]))
    with pytest.raises(InfeasibleError, match="not known as one"):
        planned(stranger)
    with pytest.raises(SpecError, match="not known as one"):
        given_layout(stranger)


@pytest.mark.parametrize(("key", "value"), [("dtype", "fp32")])
def test_what_the_cost_model_does_not_know_is_refused(key: str, value: str) -> None:
    found = question()
    training = replace(found.training, **{key: value})  # type: ignore[arg-type]  # a field by its name
    with pytest.raises(InfeasibleError, match=f"dnn.{key} is {value}"):
        planned(replace(found, training=training))


def test_the_orders_that_a_spec_may_name_are_those_of_the_model() -> None:
    assert tuple("-".join(order) for order in ORDERS) == ORDER_NAMES


@settings(max_examples=30, deadline=None)
@given(
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2]),
    zero=st.integers(0, 1),
    recompute=st.sampled_from(["none", "selective", "full"]),
    overlaps=st.booleans(),
    offload=st.booleans(),
)
def test_a_prediction_sums_up_and_is_read_back_from_its_block(
    tensor: int, pipeline: int, zero: int, recompute: str, overlaps: bool, offload: bool
) -> None:
    problem = question()
    chosen = given_layout(
        problem,
        tensor=tensor,
        pipeline=pipeline,
        zero=zero,
        recompute=recompute,
        overlap_data=overlaps,
        offload_optimizer=offload,
    )
    assert given_layout(problem, **chosen.to_document()) == chosen
    assert HybridConfiguration.of(chosen.codes(), batch=8, machines=None) == chosen
    found = hybrid.predict(problem, chosen)
    assert sum(found.breakdown_s.values()) == pytest.approx(found.iteration_time_s)
    terms = {name: size for name, size in found.memory_bytes.items() if name not in ("total", "limit")}
    assert sum(terms.values()) == pytest.approx(found.memory_bytes["total"])
    stages = [row["memory_bytes"] for row in found.details["stages"]]
    assert max(stages) == pytest.approx(found.memory_bytes["total"])
    assert len(stages) == pipeline
    assert all(seconds >= 0 for seconds in found.breakdown_s.values())


def test_a_layout_that_does_not_fit_is_explained() -> None:
    problem = question(memory="1 GiB")
    chosen = given_layout(problem)
    lines = hybrid.explain(problem, chosen, hybrid.predict(problem, chosen))
    assert any(line.startswith("it does not fit: a device of stage 1 would hold") for line in lines)


# -- plans ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transformer", [TINY, MOE])
def test_a_plan_is_proven_predicted_alike_and_passes_the_checks(transformer: dict[str, Any]) -> None:
    problem = question(transformer, memory="4 GiB")
    found = planned(problem, num_alternatives=3)
    assert found.status is Status.OPTIMAL
    assert isinstance(found.configuration, HybridConfiguration)
    assert hybrid.predict(problem, found.configuration).iteration_time_s == pytest.approx(found.objective, rel=1e-12)
    assert found.prediction.memory_bytes["total"] <= 4 * 2**30
    for chosen in (found.configuration, *(one.configuration for one in found.alternatives)):
        assert chosen is not None
        block = chosen.to_document()
        assert given_layout(problem, **block) == chosen  # which refuses what breaks a rule
        facts = checks.facts_of(problem, block, hybrid.predict(problem, chosen))
        assert all(finding.is_ok for finding in facts.findings), facts.findings
    facts = checks.facts_of(problem, found.configuration.to_document(), found.prediction)
    open_problem = replace(problem, families=("hybrid",))
    assert all(one.is_ok for one in limits_kept(open_problem, facts))
    objectives = [found.objective, *(one.objective for one in found.alternatives)]
    assert objectives == sorted(objectives)
    assert len(found.alternatives) == 3


def test_the_checks_find_degrees_that_do_not_divide_and_time_that_is_too_short() -> None:
    problem = question()
    chosen = given_layout(problem, tensor=2)
    prediction = hybrid.predict(problem, chosen)
    wrong = {"tensor": 3, "pipeline": 5, "microbatch": 3, "expert": 2, "context": 3}
    facts = checks.facts_of(problem, {**chosen.to_document(), **wrong}, prediction)
    bad = {one.name for one in facts.findings if not one.is_ok}
    assert bad == {"heads", "layers", "micro-batches", "experts", "sequence"}
    quick = replace(prediction, iteration_time_s=1e-6, memory_bytes={**prediction.memory_bytes, "weights": 0.0})
    facts = checks.facts_of(problem, chosen.to_document(), quick)
    seconds = {"work", "seconds by part", "replay", "figures", "FLOP of the step"}
    bad = {one.name for one in facts.findings if not one.is_ok}
    assert bad == {*seconds, "memory terms", "memory of the fullest stage"}


@pytest.mark.usefixtures("wordless")
@pytest.mark.parametrize(
    "pins",
    [
        {"tensor_parallel_size": 2},
        {"num_stages": 2, "schedule": "interleaved"},
        {"pipeline_parallel_size": 2, "zero_bubble": True},
        {"schedule": "gpipe", "num_stages": 4},
        {"data_parallel_size": 4, "zero_stage": 3},
        {"zero_stage": 1, "num_microbatches": 2},
        {"microbatch_size": 2, "recompute": "full"},
        {"sequence_parallel": True},
        {"overlap_data": False, "offload_optimizer": True},
        {"rank_order": ORDER_NAMES[3], "context_parallel_size": 2, "tensor_parallel_size": 2},
        {"num_devices": 4},
        {"num_machines": 1},
        {"chunks_per_device": 2},
    ],
)
def test_pins_are_kept(pins: dict[str, Any]) -> None:
    problem = replace(question(), fixed=pins)
    found = planned(problem)
    facts = checks.facts_of(problem, found.configuration.to_document(), found.prediction)
    assert {key: facts.decisions[key] for key in pins} == pins
    assert found.objective >= free_plan().objective * (1 - 1e-9)
    assert pins.keys() <= pinnable_keys("hybrid")


def test_a_pin_that_nothing_can_keep_is_named_with_what_it_can_be() -> None:
    with pytest.raises(InfeasibleError, match=r"fix.tensor_parallel_size is 3, and it can be 1, 2, 4, 8"):
        planned(replace(question(), fixed={"tensor_parallel_size": 3}))
    with pytest.raises(InfeasibleError, match="zero_stage is 3, and it can be 0, 1: muon steps whole matrices"):
        training = replace(question().training, optimizer="muon")
        planned(replace(question(), training=training, fixed={"zero_stage": 3}))
    with pytest.raises(InfeasibleError, match="no layout of up to 8 devices meets all limits and pins"):
        planned(replace(question(), fixed={"tensor_parallel_size": 8, "data_parallel_size": 8}))


def test_what_does_not_fit_says_how_much_is_missing_and_that_much_does() -> None:
    problem = question(memory="50 MiB")
    with pytest.raises(InfeasibleError, match="are missing") as caught:
        planned(problem)
    needed = str(caught.value).split("Raise memory_per_device to ")[1].split(",")[0]
    limits = replace(problem.limits, memory_per_device_bytes=parse(needed, Dimension.DATA))
    assert planned(replace(problem, limits=limits)).prediction.memory_bytes["total"] <= parse(needed, Dimension.DATA)
    less = replace(problem.limits, memory_per_device_bytes=parse(needed, Dimension.DATA) * 0.99)
    with pytest.raises(InfeasibleError):
        planned(replace(problem, limits=less))


def test_the_memory_that_is_enough_is_that_of_a_device_unless_a_limit_of_the_user_binds() -> None:
    asked = {
        "dnn": {"zoo": "bert-large", "global_batch": 8},
        "cluster": {"machines": [{"count": 1, "devices": 1, "device": "rtx-2080-ti"}]},
        "families": ["hybrid"],
    }
    small = with_memory(planner.load(asked), "rtx-2080-ti", 2.0**30)
    limited = planner.load({**asked, "constraints": {"memory_per_device": "0.5 GiB"}})
    for problem in (small, limited):
        with pytest.raises(InfeasibleError) as caught:
            planned(problem)
        enough, is_small = caught.value.enough_bytes, problem is small  # of a larger device more is kept
        for part in (1 + 1e-9, 0.9999):
            limits = replace(problem.limits, memory_per_device_bytes=enough * part)
            other = with_memory(small, "rtx-2080-ti", enough * part) if is_small else replace(problem, limits=limits)
            if part > 1:
                assert planned(other)
            else:
                with pytest.raises(InfeasibleError):
                    planned(other)


def test_a_pin_that_stands_in_the_way_of_memory_is_named() -> None:
    free = planned(question(memory="500 MiB"))
    assert free.status is Status.OPTIMAL
    with pytest.raises(InfeasibleError, match=r"or leave out fix\.num_devices"):
        planned(replace(question(memory="500 MiB"), fixed={"num_devices": 1}))


def test_a_search_that_is_out_of_time_has_no_answer() -> None:
    with pytest.raises(NoAnswerError, match="raise --time-limit"):
        planned(question(), time_limit_s=0.0)


@pytest.mark.usefixtures("wordless")
@settings(max_examples=6, deadline=None)
@given(memory=st.sampled_from(["1500 MiB", "2 GiB", "3 GiB"]), network=st.sampled_from(["10 Gbit/s", "200 Gbit/s"]))
def test_more_memory_bandwidth_and_devices_never_hurt(memory: str, network: str) -> None:
    objective = objective_of(memory, network)
    assert objective_of(None, network) <= objective * (1 + 1e-9)
    assert objective_of(memory, "400 Gbit/s") <= objective * (1 + 1e-9)
    assert objective_of(memory, network, 4) <= objective * (1 + 1e-9)


@cache
def objective_of(memory: str | None, network: str, machines: int = 2) -> float:
    """The best time of a question that several examples ask."""
    return planned(question(memory=memory, network=network, machines=machines, devices=2)).objective


def test_machines_that_differ_are_planned_kind_by_kind() -> None:
    slow = {"count": 2, "device": "a100-sxm4-80gb", "devices": 4, "inside": "pcie-4-x16", "network": "10 Gbit/s"}
    quick = {**slow, "inside": "nvlink-3", "network": "200 Gbit/s"}
    found = question(cluster={"machines": [{**slow, "name": "slow"}, {**quick, "name": "quick"}]})
    best = planned(found, num_alternatives=2)
    assert isinstance(best.configuration, HybridConfiguration)
    assert best.configuration.machines == "quick"
    assert best.status is Status.OPTIMAL
    block = best.configuration.to_document()
    assert given_layout(found, **block) == best.configuration
    facts = checks.facts_of(found, block, best.prediction)
    assert facts.devices == {"quick": best.configuration.num_devices}
    with pytest.raises(SpecError, match="slow, quick"):
        given_layout(found, tensor=2)


def test_a_batch_that_may_vary_is_bounded() -> None:
    problem = question()
    training = replace(problem.training, global_batch_size=None, max_global_batch_size=8, dataset_samples=1000)
    found = planned(replace(problem, training=training, goal=Goal()))
    assert found.status is Status.FEASIBLE
    assert 0 < found.bound < found.objective
    assert any("only the largest batch, 8," in line for line in found.explanation)


def test_the_frontier_starts_with_the_plan_and_trades_time_for_memory() -> None:
    problem = question(memory="4 GiB")
    cost, found = costs_of(problem)[0], planned(problem)
    assert isinstance(found.configuration, HybridConfiguration)
    rows = frontier(cost, found.configuration.codes())
    seconds, held = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    assert seconds[0] == pytest.approx(found.objective)
    assert (np.diff(seconds) >= 0).all()
    assert (np.diff(held) < 0).all()


# -- what is printed -----------------------------------------------------------------------------------------------------


def test_options_carry_every_decision_to_the_launcher() -> None:
    problem = question(MOE)
    chosen = given_layout(
        problem,
        tensor=2,
        context=2,
        pipeline=2,
        interleave=2,
        expert=2,
        microbatch=2,
        zero=1,
        recompute="full",
        sequence_parallel=True,
        overlap_data=True,
        overlap_tensor=True,
        order=ORDER_NAMES[1],
    )
    found = hybrid.predict(problem, chosen)
    assert found.details["options"] == [
        "--tensor-model-parallel-size 2",
        "--pipeline-model-parallel-size 2",
        "--context-parallel-size 2",
        "--expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall",
        "--expert-tensor-parallel-size 2",
        "--num-layers-per-virtual-pipeline-stage 1",
        "--micro-batch-size 2",
        "--global-batch-size 8",
        "--sequence-parallel",
        "--use-distributed-optimizer",
        "--recompute-granularity full",
        "--recompute-method uniform",
        "--recompute-num-layers 1",
        "--overlap-grad-reduce",
        "--overlap-param-gather",
        "--tp-comm-overlap",
        "--use-tp-pp-dp-mapping",
    ]
    lines = hybrid.explain(problem, chosen, found)
    assert any("to launch on 8 devices with Megatron-LM" in line for line in lines)
    assert any(line.startswith("room on a device, stage by stage: ") for line in lines)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"pipeline": 2, "schedule": "zb_h1"}, "no schedule zb_h1"),
        ({"pipeline": 2, "schedule": "gpipe"}, "no GPipe schedule"),
        ({"order": ORDER_NAMES[4]}, "initialize_model_parallel"),
    ],
)
def test_what_the_launcher_cannot_do_is_said(block: dict[str, Any], words: str) -> None:
    problem = question()
    chosen = given_layout(problem, **block)
    assert any(words in line for line in hybrid.explain(problem, chosen, hybrid.predict(problem, chosen)))


def test_layers_that_divide_with_both_ends_are_launched_so() -> None:
    problem = question({**TINY, "layers": 6})
    options = hybrid.predict(problem, given_layout(problem, pipeline=4)).details["options"]
    assert {"--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"} <= set(options)


def test_embedding_and_head_may_each_be_a_chunk_alone() -> None:
    problem = question({**TINY, "layers": 4}, batch=6)  # 3 stages x 2 chunks: nothing but the ends on first and last
    chosen = given_layout(problem, pipeline=3, interleave=2)
    found = hybrid.predict(problem, chosen)
    facts = checks.facts_of(problem, chosen.to_document(), found)
    assert all(finding.is_ok for finding in facts.findings), facts.findings
    first, middle, last = (row["forward_s"] for row in found.details["stages"])
    assert first[0] < 0.2 * middle[0]
    assert first[1] == pytest.approx(middle[1])
    assert last[0] == pytest.approx(middle[0])
    ends = {"--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"}
    assert {"--num-layers-per-virtual-pipeline-stage 1", *ends} <= set(found.details["options"])
    words = r"4 layers, with embedding and head as a layer each, are fewer than 3 stages x 4 chunks.*can be: 2\."
    with pytest.raises(SpecError, match=words):
        given_layout(problem, pipeline=3, interleave=4)


def test_a_stage_holds_a_layer_at_least() -> None:
    problem = question({**TINY, "layers": 4}, batch=6)
    with pytest.raises(SpecError, match="4 layers are fewer than 6 stages"):
        given_layout(problem, pipeline=6)


def test_one_stage_has_no_zero_bubble_schedule() -> None:
    problem = question()
    with pytest.raises(SpecError, match="there is one stage") as caught:
        given_layout(problem, schedule="zb_h1")
    assert caught.value.faults[0].field == "configuration.hybrid.pipeline"
    found = planned(question(fix={"zero_bubble": True})).configuration
    assert isinstance(found, HybridConfiguration)
    assert (found.schedule, found.pipeline > 1) == ("zb_h1", True)
    with pytest.raises(InfeasibleError):
        planned(question(fix={"zero_bubble": True, "num_devices": 1}))


def test_a_prediction_carries_the_band_of_the_measurements_nearest_to_it() -> None:
    own, every = {"low": -0.1, "high": 0.2, "coverage": 0.8}, {"low": -0.3, "high": 0.4, "coverage": 0.75}
    sizes = {
        "devices": [1, 8],
        "hidden size": [512, 2048],
        "layers": [2, 8],
        "sequence length": [512, 4096],
        "vocabulary": [32000, 32000],
        "tensor degree": [1, 8],
        "stages": [1, 1],
        "micro-batch": [1, 8],
        "context degree": [1, 8],
        "experts": [0, 0],
    }
    family = {"rows": 9, "sizes": sizes, "software": ["megatron-core"]}
    device = {**family, "sizes": {**sizes, "stages": [1, 2]}}
    ranges = {"a100-sxm4-80gb": {**device, "families": {"vtrain-single": family}}}
    unseen = {"low": -0.5, "high": 0.6, "coverage": 0.77}
    bands = {"bands": {"vtrain-single": own}, "device_bands": {"a100-sxm4-80gb": every, "all": unseen}}
    found = question(rates={**RATES, **bands, "ranges": ranges})

    def error(problem: Problem, **layout: Any) -> Any:
        return hybrid.predict(problem, given_layout(problem, **layout)).relative_error

    inside = error(found)
    assert {key: inside[key] for key in own} == own
    assert inside["from"] == "vtrain-single"
    assert "A100" in inside["conditions"]
    beside = error(found, pipeline=2)  # within the ranges of the device, outside of the family's
    assert {key: beside[key] for key in every} == every
    assert beside["from"] == "a100-sxm4-80gb"
    assert "outside" not in beside["conditions"]
    far = error(found, pipeline=4)["conditions"]
    assert far.endswith(
        "left out whole of the fit that predicts it; outside of what was measured on a100-sxm4-80gb: stages 4 (1 to 2)"
    )
    few = question(rates={**RATES, "device_bands": {"all": unseen}, "ranges": ranges})
    assert (error(few)["from"], error(few)["high"]) == ("all", 0.6)
    other = {name: one for name, one in RATES["devices"].items() if "a100" not in name}
    strange = {"devices": other, "device_bands": {"all": every, "unmeasured": unseen}}
    assert error(question(rates={**RATES, **strange}))["from"] == "unmeasured"
    for change in ({"software": ["torchtitan"]}, {"sizes": {**sizes, "vocabulary": [50000, 60000]}}):
        other = {"a100-sxm4-80gb": {**device, **change, "families": {"vtrain-single": {**family, **change}}}}
        assert error(question(rates={**RATES, **bands, "ranges": other}))["from"] == "a100-sxm4-80gb"
    assert error(question()) is None


def test_an_overlap_that_the_program_lacks_is_refused_and_one_that_it_has_is_not() -> None:
    rates = {**RATES, "software": {**RATES["software"], "composer-fsdp": RATES["software"]["megatron-core"]}}
    found = question(rates=rates, calibration={"memory_reserve": "0 B", "program": "composer-fsdp"})
    assert given_layout(found, tensor=2, data=2, microbatch=2, overlap_data=True).overlap_data
    with pytest.raises(SpecError, match=r"composer-fsdp has no overlap_tensor: .* Write false"):
        given_layout(found, tensor=2, data=2, microbatch=2, sequence_parallel=True, overlap_tensor=True)


def test_a_device_that_was_not_fitted_is_called_uncalibrated() -> None:
    machine = {"count": 1, "device": "h100-sxm", "devices": 4, "inside": "nvlink-4", "network": "400 Gbit/s"}
    found = question(cluster={"machines": [machine]})
    best = planned(found)
    assert any("h100-sxm is uncalibrated" in line for line in best.explanation)
    assert any("h100-sxm is uncalibrated" in line for line in best.warnings)
    assert not any("uncalibrated for transformers" in line for line in free_plan().warnings)


def test_every_decision_can_be_pinned_in_a_spec() -> None:
    found = question(fix={"tensor_parallel_size": 2, "zero_bubble": True, "rank_order": ORDER_NAMES[1]})
    assert found.fixed == {"tensor_parallel_size": 2, "zero_bubble": True, "rank_order": ORDER_NAMES[1]}


def test_experts_over_a_tensor_degree_ask_for_sequence_parallelism() -> None:
    problem = question(MOE)
    with pytest.raises(SpecError, match=r"sequence parallelism only\. Write true"):
        given_layout(problem, tensor=2, pipeline=2, data=2, microbatch=2, sequence_parallel=False)


def test_two_numbers_of_stages_are_refused() -> None:
    with pytest.raises(SpecError, match=r"contradicts fix\.num_stages"):
        question(MOE, fix={"num_stages": 2, "pipeline_parallel_size": 1})


def test_a_tied_embedding_is_reduced_alone_where_there_are_no_replicas() -> None:
    problem = question({"layers": 4, "hidden": 256, "heads": 8, "vocabulary": 1000, "sequence_length": 128})
    either = [
        hybrid.predict(
            problem, given_layout(problem, tensor=2, pipeline=4, data=1, microbatch=1, overlap_data=overlaps)
        )
        for overlaps in (False, True)
    ]
    assert either[0].breakdown_s["data"] > 0
    assert either[0].iteration_time_s == either[1].iteration_time_s


@pytest.mark.parametrize(("machines", "is_on"), [("a100-sxm4-80gb", True), ("tpu-v5p", False)])
def test_what_is_on_where_it_is_left_out_is_so_on_the_machines_of_a_layout(machines: str, is_on: bool) -> None:
    """MaxText overlaps no exchange of experts, whatever other machines there are."""
    names = ("a100-sxm4-80gb", "tpu-v5p")
    group = {"count": 1, "devices": 4, "network": "100 Gbit/s", "latency": "5 us"}
    problem = question(MOE, cluster={"machines": [{"name": one, "device": one, **group} for one in names]})
    assert given_layout(problem, machines=machines, data=4, expert=4, microbatch=1).overlap_expert is is_on
