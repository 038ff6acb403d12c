"""What a given pipeline costs, and what may not be given."""

import json
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from given_pipelines import DNN, LAYERS, MACHINE, MIXED, TWO, asked, loaded, predicted
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.api import configuration_of, timeline
from planner.cli.run import run
from planner.decisions import pinnable_keys
from planner.errors import ModelError
from planner.families.pipeline import family as pipeline
from planner.families.pipeline.cost import PipelineConfiguration, PipelineCost
from tests.referee.second_physics.pipeline import facts_of


def explained(stages: list[dict[str, Any]] | None = None, **changes: Any) -> str:
    problem, configuration = loaded(stages, **changes)
    return "\n".join(pipeline.explain(problem, configuration, planner.predict(problem, configuration)))


# -- time --------------------------------------------------------------------------------------------------------------


def test_two_equal_stages_take_what_a_hand_computes() -> None:
    dnn = {**DNN, "layers": [{**row, "forward": "1 ms", "backward": "2 ms"} for row in LAYERS]}
    found = predicted(dnn=dnn, block={"num_microbatches": 4}, calibration={"bandwidth_efficiency": 1})
    # 8 samples a micro-batch, 4 on a replica: 3 layers x 4 x (1 + 2) ms = 36 ms; d reads a and c, which both cross.
    sent_s = 20e-6 + 8 * 2 * 1e6 / 1.25e9
    row = found.details["stages"][0]
    assert (row["forward_s"], row["backward_s"]) == pytest.approx((12e-3, 24e-3))
    assert row["transfer_s"] == pytest.approx(sent_s)
    # First forward, transfer, forward; then the second stage computes on, and the last error returns.
    assert found.iteration_time_s > 4 * 36e-3 + 36e-3
    assert found.breakdown_s["bubble"] == pytest.approx(36e-3)
    assert found.breakdown_s["exposed_transfers"] >= 2 * sent_s - 1e-9
    assert found.epoch_time_s == pytest.approx(100 * found.iteration_time_s)


@st.composite
def blocks(draw: st.DrawFn) -> dict[str, Any]:
    """A configuration of the six layers, on two groups of machines."""
    schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved"]))
    chunks = 2 if schedule == "interleaved" else 1
    p = draw(st.integers(1, 3))
    cuts = sorted(draw(st.lists(st.integers(1, 5), min_size=p * chunks - 1, max_size=p * chunks - 1, unique=True)))
    homes = [(draw(st.sampled_from(["w", "x"])), draw(st.integers(1, 2))) for _ in range(p)]
    names = [row["name"] for row in LAYERS]
    stages = [
        {"first": names[first], "last": names[end - 1], "machines": homes[k % p][0], "replicas": homes[k % p][1]}
        for k, (first, end) in enumerate(zip([0, *cuts], [*cuts, 6], strict=True))
    ]
    return {
        "stages": stages,
        "schedule": schedule,
        "chunks_per_device": chunks,
        "num_microbatches": p * draw(st.integers(1, 4)),
    }


@settings(max_examples=60)
@given(blocks())
def test_the_breakdown_sums_to_the_iteration_and_every_figure_is_sound(block: dict[str, Any]) -> None:
    dnn = {**DNN, "profile_device": "v100-sxm2-16g"}
    problem = planner.load({"dnn": dnn, "cluster": MIXED, "configuration": {"pipeline": block}})
    _, configuration = configuration_of(problem)
    assert isinstance(configuration, PipelineConfiguration)
    found, cost = planner.predict(problem, configuration), PipelineCost(problem)
    assert sum(found.breakdown_s.values()) == pytest.approx(found.iteration_time_s)
    assert all(seconds >= 0 for seconds in found.breakdown_s.values())
    assert found.iteration_time_s == pytest.approx(cost.iteration_time_s(cost.shape(configuration)))
    assert 0 < found.scaling_factor <= 1 + 1e-9
    assert sum(found.memory_bytes[key] for key in found.memory_bytes if key not in ("total", "limit")) == pytest.approx(
        found.memory_bytes["total"]
    )
    shares = [row["memory_bytes"] / row["memory_limit_bytes"] for row in found.details["stages"]]
    assert max(shares) == pytest.approx(found.memory_bytes["total"] / found.memory_bytes["limit"])
    assert all(0 <= row["idle_share"] < 1 for row in found.details["stages"])
    again = planner.load({"dnn": dnn, "cluster": MIXED, "configuration": {"pipeline": configuration.to_document()}})
    assert configuration_of(again)[1] == configuration
    assert timeline(problem, "pipeline", configuration)["traceEvents"]


def test_one_stage_on_all_devices_is_data_parallelism_without_overlap() -> None:
    whole = [{"first": "a", "last": "f", "replicas": 8}]
    for steps in (1, 4):
        piped = predicted(whole, block={"num_microbatches": steps})
        block = {"num_devices": 8, "fusion_groups": "one", "gradient_accumulation_steps": steps}
        question = {"dnn": DNN, "cluster": {"machines": [MACHINE]}, "calibration": {"strategy": "naive"}}
        reduced = planner.predict(planner.load({**question, "configuration": {"all_reduce": block}}))
        assert piped.iteration_time_s == pytest.approx(reduced.iteration_time_s)
        assert piped.breakdown_s["exposed_gradients"] == pytest.approx(reduced.breakdown_s["exposed_all_reduce"])
        assert piped.scaling_factor == pytest.approx(reduced.scaling_factor)
        assert piped.memory_bytes["total"] == pytest.approx(reduced.memory_bytes["total"])


def test_a_faster_network_or_device_never_hurts() -> None:
    slow = predicted().iteration_time_s
    assert predicted(cluster={"machines": [{**MACHINE, "network": "20 Gbit/s"}]}).iteration_time_s < slow
    faster = {**DNN, "layers": [{**row, "backward": "1 ms"} for row in LAYERS]}
    assert predicted(dnn=faster).iteration_time_s < slow


def test_a_batch_that_does_not_divide_counts_its_largest_micro_batch() -> None:
    found = predicted(dnn={**DNN, "global_batch": 33}, block={"num_microbatches": 4})
    assert found.details["microbatch_size"] == ceil(33 / 4)
    assert found.details["stages"][0]["samples_per_replica"] == 5


def test_input_is_read_by_the_machines_of_the_first_stage() -> None:
    machine = {**MACHINE, "storage": {"bandwidth": "1 MB/s"}}
    dnn = {**DNN, "sample_bytes": "100 kB"}
    narrow = predicted(dnn=dnn, cluster={"machines": [machine]})
    assert narrow.details["input_s"]["read"] == pytest.approx(32 * 0.1)  # one machine reads all samples
    assert narrow.iteration_time_s == pytest.approx(3.2)
    spread = [{"first": "a", "last": "c", "replicas": 4}, {"first": "d", "last": "f", "replicas": 2}]
    assert predicted(spread, dnn=dnn, cluster={"machines": [machine]}).iteration_time_s == pytest.approx(1.6)
    assert "input binds" in explained(dnn=dnn, cluster={"machines": [machine]})
    shared = {**MACHINE, "storage": {"bandwidth": "1 MB/s", "shared": True}}
    assert predicted(spread, dnn=dnn, cluster={"machines": [shared]}).iteration_time_s == pytest.approx(3.2)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_memory_holds_what_the_schedule_keeps_in_flight() -> None:
    halves = [{"first": "a", "last": "c"}, {"first": "d", "last": "f"}]

    def rows(schedule: str, number: int) -> list[dict[str, float]]:
        problem, configuration = loaded(halves, block={"schedule": schedule, "num_microbatches": number})
        cost = PipelineCost(problem)
        return cost.memory_bytes(cost.shape(configuration))

    first, second = rows("1f1b", 8)
    assert first["weights"] == pytest.approx(12e6)
    assert first["optimizer"] == pytest.approx(12e6)
    assert first["activations"] == pytest.approx(2 * 4 * 3e6)  # two in flight, four samples, three outputs
    assert second["activations"] == pytest.approx(1 * 4 * (3 + 2) * 1e6)  # and the inputs a and c that it received
    assert first["boundaries"] == second["boundaries"] == pytest.approx(4 * 2e6)
    assert rows("gpipe", 8)[0]["activations"] == pytest.approx(8 * 4 * 3e6)
    assert rows("1f1b", 1)[0]["activations"] == pytest.approx(1 * 32 * 3e6)


def test_chunks_of_one_device_are_held_together() -> None:
    quarters = [{"first": first, "last": last} for first, last in (("a", "a"), ("b", "c"), ("d", "d"), ("e", "f"))]
    problem, configuration = loaded(
        quarters, block={"schedule": "interleaved", "chunks_per_device": 2, "num_microbatches": 4}
    )
    cost = PipelineCost(problem)
    rows = cost.memory_bytes(cost.shape(configuration))
    assert [row["weights"] for row in rows] == pytest.approx([8e6, 16e6])
    assert configuration.num_devices == 2
    # Device 0 holds, at most, three micro-batches of its first chunk (output a) and two of its second (output d, inputs
    # a and c): (2 (p - 1) + (v - 1) p + 1) = 5 of 8 samples.
    assert rows[0]["activations"] == pytest.approx(8 * (3 * 1e6 + 2 * 3e6))


def test_what_does_not_fit_is_said_with_its_stage() -> None:
    words = explained(constraints={"memory_per_device": "30 MB"}, block={"num_microbatches": 1})
    assert "it does not fit: a device of stage 1 would hold" in words
    assert "with 1 micro-batch in flight, and may hold 28.6 MiB" in words
    assert "does not fit" not in explained()


# -- words and timeline ------------------------------------------------------------------------------------------------


def test_what_binds_is_named() -> None:
    assert "transfers between stages binds" in explained(cluster={"machines": [{**MACHINE, "network": "100 Mbit/s"}]})
    assert "the bubble binds" in explained([{"first": n, "last": n} for n in "abcdef"], block={"num_microbatches": 1}, cluster={"machines": [{**MACHINE, "network": "1000 Gbit/s", "latency": "0 s"}]})  # fmt: skip
    words = explained([{"first": "a", "last": "a"}, {"first": "b", "last": "c"}, {"first": "d", "last": "f"}])
    assert "stage 2 of 3 (1 x v100-sxm2-16g, from b on) computes longest" in words
    assert "relayed by them, 1 times" in words  # a is read by d


def test_a_timeline_has_rows_for_stages_and_their_channels() -> None:
    problem, configuration = loaded()
    document = timeline(problem, "pipeline", configuration)
    rows = [event["args"]["name"] for event in document["traceEvents"] if event.get("name") == "thread_name"]
    stages = [f"stage {k} (2 x v100-sxm2-16g)" for k in (1, 2)]
    assert rows == [stages[0], f"{stages[0]}, outputs", stages[1], f"{stages[1]}, errors"]
    spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
    ends_s = max(event["ts"] + event["dur"] for event in spans) / 1e6
    assert ends_s == pytest.approx(planner.predict(problem, configuration).iteration_time_s, rel=1e-6)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_millions_of_micro_batches_are_predicted_and_a_device_works_all_the_time(schedule: str) -> None:
    fast = {
        **MACHINE,
        "network": "40000 Gbit/s",
        "latency": "0 s",
        "inside": {"bandwidth": "40 TB/s", "latency": "0 s"},
    }
    block = {"num_microbatches": 5_000_000, "schedule": schedule}
    found = predicted(block=block, dnn={**DNN, "global_batch": 10**7}, cluster={"machines": [fast]})
    slowest = max(found.details["stages"], key=lambda row: row["forward_s"] + row["backward_s"])
    work_s = 5_000_000 * (slowest["forward_s"] + slowest["backward_s"])
    assert work_s < found.iteration_time_s < (1.0001 if schedule == "1f1b" else 1.3) * work_s


def test_millions_of_micro_batches_are_not_drawn() -> None:
    problem, configuration = loaded(block={"num_microbatches": 5_000_000}, dnn={**DNN, "global_batch": 10**7})
    with pytest.raises(ModelError, match="5000000 micro-batches through 2 stages are too many tasks to draw"):
        timeline(problem, "pipeline", configuration)


def test_a_schedule_too_long_to_replay_is_still_checked_by_its_devices_work_and_its_memory() -> None:
    problem, configuration = loaded(block={"num_microbatches": 1_000_000}, dnn={**DNN, "global_batch": 10**7})
    found = planner.predict(problem, configuration)
    facts = facts_of(problem, configuration.to_document(), found)
    assert facts.iteration_s is None
    assert [one.is_ok for one in facts.findings if one.name == "schedule time"] == [True]
    assert facts.memory_bytes["w"] == pytest.approx(max(row["memory_bytes"] for row in found.details["stages"]))
    wrong = replace(found, iteration_time_s=found.iteration_time_s / 2)
    findings = facts_of(problem, configuration.to_document(), wrong).findings
    assert [one.is_ok for one in findings if one.name == "schedule time"] == [False]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved"])
def test_the_checker_counts_the_memory_of_every_schedule_as_the_cost_does(schedule: str) -> None:
    block: dict[str, Any] = {"num_microbatches": 16, "schedule": schedule}
    stages = TWO
    if schedule == "interleaved":
        block["chunks_per_device"] = 2
        stages = [{"first": n, "last": m, "replicas": 2} for n, m in ("aa", "bb", "cd", "ef")]
    problem, configuration = loaded(stages, block=block)
    found = planner.predict(problem, configuration)
    facts = facts_of(problem, configuration.to_document(), found)
    assert facts.memory_bytes["w"] == pytest.approx(max(row["memory_bytes"] for row in found.details["stages"]))


def test_a_pinned_algorithm_is_no_decision_of_a_pipeline() -> None:
    """Each stage takes the cheapest of calibration.algorithms; `fix.algorithm` belongs to all-reduce."""
    assert "algorithm" not in pinnable_keys("pipeline")
    assert predicted(fix={"algorithm": "tree"}).breakdown_s == predicted().breakdown_s


def test_the_command_line_predicts_a_pipeline_and_writes_its_trace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "spec.yaml").write_text(json.dumps(asked()))
    assert run(["predict", str(tmp_path / "spec.yaml"), "--trace", str(tmp_path / "trace.json")]) == 0
    text = capsys.readouterr().out
    assert "pipeline on 4 devices (2 stages: 2-2), 8 micro-batches, 1f1b, as given" in text
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert run(["predict", str(tmp_path / "spec.yaml"), "--json"]) == 0
    block = json.loads(capsys.readouterr().out)["configuration"]
    assert block["stages"][1] == {"first": "d", "last": "f", "machines": "w", "replicas": 2}
