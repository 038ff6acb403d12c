"""The program that trains is the user's choice: seconds, bytes, words, and the second count of the checker follow it."""

from pathlib import Path
from typing import Any

import pytest
from hybrid_questions import MOE, TINY, predicted
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import planner
from planner.checks import report_text
from planner.data.fits import links_reached, transformer_rates
from planner.errors import InfeasibleError, SpecError
from planner.families.hybrid import family as hybrid
from planner.families.hybrid.cost import GroupCost
from planner.models.programs import PROGRAMS
from planner.problem import Problem
from planner.question.spec import HybridSpec
from research.transformer_fit.fit import SOFTWARE, Table
from research.transformer_fit.rows import Row, read_rows
from tests.referee.second_physics import check
from tests.referee.second_physics.hybrid import facts_of
from tests.referee.second_physics.hybrid_program import PROGRAM, program_of

MACHINES = {"count": 2, "device": "a100-sxm4-80gb", "devices": 4, "inside": "nvlink-3", "network": "200 Gbit/s"}
EVERY = sorted(PROGRAMS)
OTHERS = [name for name in EVERY if name != "megatron-core"]


def question(
    program: str | None, transformer: dict[str, Any] = TINY, *, device: str = "a100-sxm4-80gb", **more: Any
) -> Problem:
    asked: dict[str, Any] = {
        "dnn": {"transformer": transformer, "global_batch": 16, "dtype": "bf16", "optimizer": "adam"},
        "cluster": {"machines": [{**MACHINES, "device": device}]},
        "objective": "iteration_time",
        "families": ["hybrid"],
        "calibration": {} if program is None else {"program": program},
        **more,
    }
    return planner.load(asked)


LONG = {**TINY, "sequence_length": 8192}
LAYOUT: dict[str, Any] = {"tensor": 2, "pipeline": 2, "data": 2, "sequence_parallel": True, "zero": 1}


def test_programs_are_the_same_wherever_they_are_listed() -> None:
    assert set(PROGRAMS) == set(transformer_rates()["software"]) == {*SOFTWARE, "primus"}  # as Megatron-Core
    assert all(program_of({PROGRAM: name}) is not None for name in EVERY)


def test_the_default_program_is_megatron_core() -> None:
    plain, named = (planner.plan(question(program)) for program in (None, "megatron-core"))
    assert plain.objective == named.objective
    assert plain.prediction.details["software"] == "megatron-core"
    (assumed,) = [one for one in question(None).key_assumptions if one.flag == "calibration.program"]
    assert assumed.text == "program: megatron-core trains"
    assert not any(one.flag == "calibration.program" for one in question("megatron-core").key_assumptions)


def test_an_unknown_program_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="Did you mean 'composer-fsdp'") as caught:
        question("composer-fdsp")
    assert caught.value.faults[0].field == "calibration.program"
    file = tmp_path / "fitted.yaml"
    file.write_text("memory_reserve: 1 GiB\nprogram: torchtitann\n", encoding="utf-8")
    with pytest.raises(SpecError, match="Did you mean 'torchtitan'") as caught:
        question(None, calibration=str(file))
    assert caught.value.faults[0].line == 2


@pytest.mark.usefixtures("wordless")
@pytest.mark.parametrize("program", EVERY)
@pytest.mark.parametrize("transformer", [TINY, MOE], ids=["dense", "experts"])
def test_a_plan_of_every_program_passes_the_whole_checker(program: str, transformer: dict[str, Any]) -> None:
    problem = question(program, transformer, fix={"tensor_parallel_size": 2, "data_parallel_size": 2})
    plan = planner.plan(problem)
    report = check(problem, plan)
    assert report.is_ok, report_text(report)
    assert plan.prediction.details["software"] == program
    assert any(f"the program that trains: {program}" in line for line in plan.assumptions)


LAYOUTS = st.fixed_dictionaries(
    {
        "tensor": st.sampled_from([1, 2]),
        "context": st.sampled_from([1, 2]),
        "pipeline": st.sampled_from([1, 2]),
        "data": st.sampled_from([1, 2, 4]),
        "microbatch": st.sampled_from([1, 2]),
        "zero": st.sampled_from([0, 1, 2, 3]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "schedule": st.sampled_from(["gpipe", "1f1b"]),
        "sequence_parallel": st.booleans(),
        "overlap_data": st.booleans(),
    }
)


@settings(max_examples=60, deadline=None)
@given(program=st.sampled_from(EVERY), layout=LAYOUTS, transformer=st.sampled_from([TINY, MOE]))
def test_the_second_count_agrees_for_every_program(
    program: str, layout: dict[str, Any], transformer: dict[str, Any]
) -> None:
    if layout["pipeline"] > 1:
        layout = {**layout, "zero": min(layout["zero"], 1)}
    sequence_parallel = layout["tensor"] > 1 and (transformer is MOE or layout["sequence_parallel"])
    layout = {**layout, "sequence_parallel": sequence_parallel}
    problem = question(program, transformer)
    try:
        block, found = predicted(problem, layout)
    except SpecError:  # more devices than there are, or a rule broken
        assume(False)
        raise
    assert [f"{one.name}: {one.text}" for one in facts_of(problem, block, found).findings if not one.is_ok] == []


@pytest.mark.parametrize("program", OTHERS)
def test_figures_of_another_program_than_is_asked_for_are_found(program: str) -> None:
    block, found = predicted(question("megatron-core"), LAYOUT)
    wrong = {one.name for one in facts_of(question(program), block, found).findings if not one.is_ok}
    same = {"program"} == wrong and program == "primus"  # which runs Megatron-Core
    assert same or {"program", "memory activations"} <= wrong or {"program", "memory weights"} <= wrong


@pytest.mark.parametrize("program", EVERY)
def test_unlike_stages_pass_the_checker_for_every_program(program: str) -> None:
    stages = [{"layers": 1}, {"layers": 3}]
    problem = question(program)
    block, found = predicted(problem, {**LAYOUT, "stages": stages})
    assert [f"{one.name}: {one.text}" for one in facts_of(problem, block, found).findings if not one.is_ok] == []
    assert found.details["software"] == program


def test_a_program_without_flash_attention_keeps_scores_and_takes_longer() -> None:
    names = ("megatron-lm-fused", "megatron-core")
    found = {name: predicted(question(name, LONG), LAYOUT)[1] for name in names}
    old, new = found["megatron-lm-fused"], found["megatron-core"]
    assert old.memory_bytes["activations"] > new.memory_bytes["activations"]
    assert old.breakdown_s["compute"] > new.breakdown_s["compute"]
    assert old.memory_bytes["weights"] == new.memory_bytes["weights"]


def test_fully_sharded_weights_are_kept_in_four_bytes() -> None:
    weights = [predicted(question(name), LAYOUT)[1].memory_bytes["weights"] for name in ("torchtitan", "megatron-core")]
    assert weights[0] == pytest.approx(2 * weights[1], rel=0.05)  # and what is gathered ahead
    assert weights[0] > 2 * weights[1]


@pytest.mark.parametrize("program", OTHERS)
@pytest.mark.parametrize("more", [{}, {"stages": [{"layers": 1}, {"layers": 3}]}], ids=["even", "unlike stages"])
def test_no_command_is_printed_for_a_program_that_it_does_not_fit(program: str, more: dict[str, Any]) -> None:
    problem = question(program)
    chosen = hybrid.configuration_of(problem, HybridSpec.model_validate({**LAYOUT, **more}).model_dump())
    found = hybrid.predict(problem, chosen)
    assert found.details["launch"] == [] == found.details["options"]
    lines = hybrid.explain(problem, chosen, found)
    assert any(f"no command is printed for {program}" in line for line in lines)
    assert not any("torchrun" in line or "--micro-batch-size" in line for line in lines)


MPT = {"layers": 24, "hidden": 2048, "heads": 16, "vocabulary": 50368, "sequence_length": 2048}
LLAMA = {"layers": 32, "hidden": 4096, "heads": 32, "vocabulary": 128256, "sequence_length": 8192}
GPT = {**MPT, "layers": 12, "vocabulary": 50257, "sequence_length": 1024}
CUT = {"layers": 4, "hidden": 8192, "heads": 64, "vocabulary": 128256, "sequence_length": 4096}
SPREAD = {"data": 8, "zero": 3}


@pytest.mark.parametrize(
    ("device", "program", "network", "layout", "source"),
    [
        ("h100-sxm", "composer-fsdp", MPT, SPREAD, "llm-foundry"),
        ("a100-sxm4-80gb", "composer-fsdp", MPT, SPREAD, "llm-foundry-a100"),
        ("a100-sxm4-80gb", "megatron-deepspeed", GPT, LAYOUT, "vtrain-single"),
        # Of too few groups, on a machine like no other, of another program, of sizes beyond the family's: that of the device stands for it.
        ("h100-sxm", "torchtitan", LLAMA, {**SPREAD, "microbatch": 2}, "h100-sxm"),
        ("b200-sxm", "megatron-core", CUT, LAYOUT, "all"),
        ("h100-sxm", "megatron-lm", MPT, LAYOUT, "h100-sxm"),
        ("h100-sxm", "composer-fsdp", MPT, {"data": 4, "tensor": 2}, "h100-sxm"),
        ("a100-sxm4-80gb", "megatron-deepspeed", {**GPT, "layers": 48}, LAYOUT, "a100-sxm4-80gb"),
        ("a100-sxm4-80gb", "megatron-deepspeed-bf16", GPT, LAYOUT, "a100-sxm4-80gb"),
    ],
)
def test_the_error_is_that_of_the_programs_own_measurements_within_their_ranges(
    device: str, program: str, network: dict[str, Any], layout: dict[str, Any], source: str
) -> None:
    _, found = predicted(question(program, network, device=device), layout)
    assert found.relative_error is not None
    assert found.relative_error["from"] == source
    if program == "megatron-lm":
        assert ": the program megatron-lm (nanotron, composer-fsdp" in found.relative_error["conditions"]


@pytest.mark.parametrize(
    ("dnn", "is_measured"),
    [
        ({"zoo": "llama3.2-1b"}, True),
        ({"zoo": "llama3.2-1b", "fine_tuning": "lora"}, False),
        ({"zoo": "llama3.2-1b", "frozen": {"layers": 4}}, False),
        ({"zoo": "dit-s-2", "optimizer": "muon"}, False),
        ({"zoo": "vit-b-16"}, False),
        ({"zoo": "gemma3-4b-vision"}, False),
    ],
)
def test_images_and_adapters_borrow_no_error_of_networks_that_were_measured(
    dnn: dict[str, Any], is_measured: bool
) -> None:
    machines = [{"count": 1, "device": "h100-sxm", "devices": 8}]
    asked = {"dnn": {**dnn, "global_batch": 64}, "cluster": {"machines": machines}, "families": ["hybrid"]}
    found = planner.plan({**asked, "objective": "iteration_time"}).prediction.relative_error
    assert (found is not None) == is_measured


def test_a_program_that_was_not_measured_on_a_device_is_named() -> None:
    for program, is_named in (("composer-fsdp", False), ("torchtitan", True)):
        lines = planner.plan(question(program)).warnings
        assert any(f"the program {program} (" in line for line in lines) == is_named


def test_devices_that_pcie_joins_exchange_at_the_share_that_it_reaches() -> None:
    machines = {"count": 1, "device": "l40s", "devices": 4, "inside": "pcie-4-x16", "network": "100 Gbit/s"}
    share = links_reached("rdma").pcie_share
    asked: dict[str, Any] = {"cluster": {"machines": [machines]}}
    usual, told, quick = (
        predicted(question(None, calibration=more, **asked), {"tensor": 4, "microbatch": 1})[1].breakdown_s
        for more in ({}, {"inside_efficiency": share}, {"inside_efficiency": 0.85})
    )
    assert usual["tensor"] == pytest.approx(told["tensor"])
    assert usual["tensor"] > 2 * quick["tensor"]


def test_other_families_count_with_the_same_program() -> None:
    def forward_s(program: str) -> float:
        problem = question(program, LONG, families=["all_reduce", "hybrid"])
        return float(problem.profiles["a100-sxm4-80gb"].forward_s.sum())

    assert forward_s("megatron-lm") > 1.2 * forward_s("megatron-core")


# -- what a device keeps for itself ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("memory", "kept"), [("64 MiB", 0.05 * 2**26), ("16 GiB", 0.8 * 2**30), ("80 GiB", 3 * 2**30)])
def test_a_small_device_keeps_a_twentieth_of_its_memory_for_itself(memory: str, kept: float) -> None:
    device = {"name": "toy", "bf16": "1 TFLOP/s", "memory": memory}
    tiny = {"layers": 4, "hidden": 64, "heads": 4, "vocabulary": 512, "sequence_length": 64}
    problem = question(None, tiny, cluster={"machines": [{"count": 2, "device": device, "network": "10 Gbit/s"}]})
    plan = planner.plan(problem)
    assert plan.prediction.memory_bytes["reserve"] == pytest.approx(kept)
    report = check(problem, plan)
    assert report.is_ok, report_text(report)
    given_bytes = question(None, tiny, calibration={"memory_reserve": "1 MiB"})
    assert GroupCost(given_bytes, given_bytes.cluster, None).reserve_bytes == 2**20


def test_one_device_is_told_in_the_singular() -> None:
    plan = planner.plan(question(None, constraints={"devices": 1}))
    assert plan.configuration.headline.startswith("1 device: ")


def test_a_network_too_large_for_all_devices_together_is_told_to_need_memory_alone() -> None:
    machines = [{**MACHINES, "count": 1, "devices": 2}]
    dnn = {"zoo": "gpt3-175b", "global_batch": 8, "dtype": "bf16", "optimizer": "adam"}
    with pytest.raises(InfeasibleError) as caught:
        planner.plan(question(None, dnn=dnn, cluster={"machines": machines}))
    (conflict,) = caught.value.conflicts
    assert conflict.is_minimal
    assert [one.field for one in conflict.relaxations] == ["memory of a100-sxm4-80gb"]


# -- measured steps through the public interface -----------------------------------------------------------------------

NAMES = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "heads": "num_heads",
    "kv_heads": "num_kv_heads",
    "feed_forward": "feed_forward_size",
    "gated": "is_gated",
    "vocabulary": "vocabulary_size",
    "sequence_length": "sequence_length",
    "tied_embeddings": "has_tied_embeddings",
    "positions": "positions",
    "norm": "norm",
    "biases": "has_biases",
}
RECOMPUTE = ("none", "selective", "full")
ROWS = {  # how many devices a machine's link inside is for, by device
    "a100-sxm4-80gb": "nvlink-3",
    "h100-sxm": "nvlink-4",
    "b200-sxm": "nvlink-5",
}


def asked_of(row: Row) -> dict[str, Any]:
    """A measured step as a question for ``predict``: network, machines, program and layout."""
    layout = {key: value for key, value in row.layout.items() if key != "num_microbatches"}
    block: dict[str, Any] = {"overlap_data": False, "overlap_tensor": False, **layout}  # as the fit counts the rows
    block["recompute"] = RECOMPUTE[int(block.get("recompute", 0))]
    number = block["tensor"] * block["context"] * block["pipeline"] * block["data"]
    machine = {
        "count": -(-number // 8),
        "device": row.device,
        "devices": 8,
        "inside": ROWS[row.device],
        "nics": 8,
        "network": f"{row.tiers[-1].bandwidth_bytes_per_s!r} B/s",
        "latency": "0 s",
    }
    network = {key: getattr(row.transformer, name) for key, name in NAMES.items()}
    batch = int(row.layout["data"] * row.layout["microbatch"] * row.layout["num_microbatches"])
    return {
        "dnn": {"transformer": network, "global_batch": batch, "dtype": "bf16", "optimizer": "adam"},
        "cluster": {"machines": [machine]},
        "objective": "iteration_time",
        "calibration": {"program": row.software},
        "configuration": {"hybrid": block},
    }


@pytest.mark.measured
@pytest.mark.parametrize(
    "family", ["vtrain-single", "vtrain-multi", "sc21-table1", "korthikanti-table5", "llm-foundry", "simumax-b200"]
)
def test_a_measured_step_is_predicted_as_by_the_fit(family: str, data_folder: Path) -> None:
    rows = [row for row in read_rows(data_folder) if row.family == family and row.transformer.experts is None]
    rows = rows[:: max(1, len(rows) // 4)][:4]
    assert rows
    rates = transformer_rates()
    parameters = {f"constants.{name}": value for name, value in rates["constants"].items()}
    parameters |= {f"machines.{name}": 1.0 for name in rates["machines"]}  # a plan is for a machine like others
    for kind in ("devices", "software"):
        for name, figures in rates[kind].items():
            parameters |= {f"{kind}.{name}.{key}": value for key, value in figures.items()}
    for row, fitted_s in zip(rows, Table(rows).predict(parameters), strict=True):
        found = planner.predict(planner.load(asked_of(row)))
        assert found.details["software"] == row.software
        assert found.iteration_time_s == pytest.approx(float(fitted_s), rel=0.01), row
