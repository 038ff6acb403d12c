"""``dnn.dtype: fp8 | mxfp8 | nvfp4`` from question to answer, and how it is refused."""

from typing import Any

import pytest

import planner
from planner.data.fits import transformer_rates
from planner.errors import SpecError
from planner.families.hybrid.cost import GroupCost
from planner.models.tiers import tiers_of
from planner.plan import Prediction

_QUESTION: dict[str, Any] = {
    "dnn": {"zoo": "llama3-8b", "global_batch": 32, "dtype": "fp8"},
    "cluster": {"machines": [{"count": 1, "device": "h100-sxm", "devices": 8}]},
    "configuration": {
        "hybrid": {"tensor": 2, "pipeline": 1, "data": 4, "microbatch": 1, "zero": 1, "recompute": "full"}
    },
}


def _predicted(device: str = "h100-sxm", dnn: dict[str, Any] | None = None, **more: Any) -> Prediction:
    cluster = {"machines": [{"count": 1, "device": device, "devices": 8}]}
    network = {key: value for key, value in {**_QUESTION["dnn"], **(dnn or {})}.items() if value is not None}
    question = {**_QUESTION, "cluster": cluster, "dnn": network, **more}
    problem = planner.load(question)
    return planner.predict(problem)


def test_fp8_is_quicker_and_holds_less_than_bf16() -> None:
    wide, short = (_predicted(dnn={"dtype": dtype}) for dtype in ("bf16", "fp8"))
    assert short.iteration_time_s < wide.iteration_time_s
    assert short.memory_bytes["activations"] <= wide.memory_bytes["activations"]


def test_torchtitan_gathers_in_two_bytes_and_multiplies_with_a_scale_for_each_row() -> None:
    for program, gathered in (("torchtitan", 2.0), ("megatron-core", 1.0)):
        problem = planner.load({**_QUESTION, "calibration": {"program": program}})
        software = GroupCost(problem, problem.cluster, None).software
        assert software.gathered_bytes == software.weight_bytes == gathered, program
    ratios = transformer_rates()["low_precision"]["programs"]
    assert ratios["torchtitan"] == ratios["torchtitan-eager"] < ratios["torchtitan-tensorwise"]


def test_weights_beside_those_in_bf16_take_more() -> None:
    weights = {
        recipe: _predicted(dnn={"fp8_recipe": recipe}).memory_bytes["weights"] for recipe in ("current", "blockwise")
    }
    assert weights["blockwise"] == pytest.approx(2 * weights["current"])


def test_graphs_leave_less_of_launching() -> None:
    launch = {
        on: _predicted(
            calibration={"cuda_graphs": on},
            configuration={"hybrid": {"tensor": 8, "pipeline": 1, "data": 1, "microbatch": 1, "zero": 0}},
        ).breakdown_s["launch"]
        for on in (False, True)
    }
    assert launch[True] < launch[False]


def test_options_of_the_program_say_what_was_asked() -> None:
    options = " ".join(_predicted(dnn={"fp8_recipe": "delayed"}).details["options"])
    assert "--fp8-recipe delayed" in options
    assert "--fp8-param-gather" in options


@pytest.mark.parametrize(
    ("device", "dnn", "more", "message"),
    [
        ("a100-sxm4-80gb", {}, {}, "a100-sxm4-80gb multiplies no numbers of eight bits. Write one of bf16"),
        ("h100-sxm", {"dtype": "mxfp8"}, {}, "Write one of fp8, bf16"),
        ("h100-sxm", {"dtype": "bf16", "fp8_recipe": "delayed"}, {}, "dnn.fp8_recipe: it goes with products"),
        ("h100-sxm", {"bf16_layers": 32}, {}, "the network has 32 layers. Write 31 or less"),
        ("h100-sxm", {}, {"calibration": {"program": "nanotron"}}, "Write program: megatron-core"),
        ("h100-sxm", {"fp8_recipe": "delayed"}, {"calibration": {"program": "torchtitan"}}, "it has current, mxfp8"),
        ("h100-sxm", {}, {"families": ["all_reduce"], "configuration": None}, "hybrid alone counts products"),
    ],
)
def test_what_cannot_be_is_refused_with_what_could(
    device: str, dnn: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    given = {key: value for key, value in more.items() if value is not None}
    cluster = {"machines": [{"count": 1, "device": device, "devices": 8}]}
    question = {**_QUESTION, "cluster": cluster, "dnn": {**_QUESTION["dnn"], **dnn}, **given}
    question = {key: value for key, value in question.items() if key not in more or more[key] is not None}
    with pytest.raises(SpecError) as caught:
        planner.load(question)
    assert message in str(caught.value)


def test_trays_of_a_rack_are_one_nvlink_domain_and_each_is_started_by_itself() -> None:
    network = {"zoo": "llama3-8b", "global_batch": 32, "dtype": "mxfp8"}
    block = {"hybrid": {"tensor": 1, "pipeline": 1, "data": 32, "microbatch": 1, "zero": 1}}
    problem = planner.load(
        {
            "dnn": network,
            "cluster": {"machines": [{"count": 8, "devices": 4, "device": "gb300", "network": "800 Gbit/s"}]},
            "configuration": block,
        }
    )
    assert [one.size for one in tiers_of(problem.cluster)] == [4, 8]
    assert any("8 trays of 4 gb300 are one NVLink domain" in one for one in problem.assumptions) or any(
        "8 trays" in one.text for one in problem.key_assumptions
    )
    assert any("--nproc-per-node 4" in line for line in planner.predict(problem).details["launch"])


def test_kernels_are_captured_with_short_products_unless_it_is_told_otherwise() -> None:
    said = [
        "--cuda-graph-impl" in " ".join(_predicted(dnn={"dtype": dtype}, calibration=graphs).details["options"])
        for dtype, graphs in (
            ("fp8", {}),
            ("fp8", {"cuda_graphs": False}),
            ("bf16", {}),
            ("bf16", {"cuda_graphs": True}),
        )
    ]
    assert said == [True, False, False, True]


@pytest.mark.parametrize(("device", "usual"), [("mi355x", False), ("b200-sxm", True)])
def test_recipes_of_amd_launch_kernels_one_by_one(device: str, usual: bool) -> None:
    cluster = {"machines": [{"count": 1, "device": device, "devices": 8}]}
    question = {**_QUESTION, "cluster": cluster, "dnn": {**_QUESTION["dnn"], "dtype": "mxfp8"}}
    problem = planner.load(question)
    (told,) = (one.text for one in problem.key_assumptions if "kernels are" in one.text)
    assert ("launched one by one, as AMD's" in told) is not usual
    found = [planner.load({**question, "calibration": {"cuda_graphs": on}}) for on in (usual, not usual)]
    seconds = [planner.predict(one).breakdown_s["launch"] for one in (problem, *found)]
    assert seconds[0] == seconds[1] != seconds[2]


def test_experts_of_their_own_kernels_take_the_host_longer_the_more_there_are_on_a_device() -> None:
    network = {"zoo": "qwen3-30b-a3b", "dtype": "mxfp8"}
    launch = [
        _predicted(
            "b200-sxm",
            network,
            calibration={"cuda_graphs": False},
            configuration={
                "hybrid": {"tensor": 1, "pipeline": 1, "data": 8, "expert": expert, "microbatch": 1, "zero": 1}
            },
        ).breakdown_s["launch"]
        for expert in (1, 8)
    ]
    assert launch[0] > launch[1]


def test_captured_experts_without_gates_are_still_launched_one_by_one() -> None:
    block = {
        "hybrid": {"tensor": 1, "pipeline": 1, "data": 8, "expert": 1, "microbatch": 1, "zero": 1, "recompute": "full"}
    }
    launch = {
        gated: _predicted(
            "b200-sxm",
            {
                "zoo": None,
                "transformer": {
                    "layers": 4,
                    "hidden": 1024,
                    "heads": 8,
                    "vocabulary": 32000,
                    "sequence_length": 1024,
                    "gated": gated,
                    "experts": {"count": 64, "top_k": 2, "size": 512},
                },
            },
            configuration=block,
        ).breakdown_s["launch"]
        for gated in (False, True)
    }
    assert launch[False] > 2 * launch[True]


@pytest.mark.parametrize(("device", "words"), [("gb200", "captured in CUDA graphs"), ("tpu-v7", "compiled as a whole")])
def test_how_kernels_of_a_step_are_started_is_said_of_each_kind_of_device(device: str, words: str) -> None:
    sizes = {"layers": 8, "hidden": 1024, "heads": 16, "vocabulary": 32_000, "sequence_length": 1024}
    machines = [{"count": 1, "device": device, "devices": 4}]
    dnn = {"transformer": sizes, "dtype": "fp8", "global_batch": 16}
    problem = planner.load({"dnn": dnn, "cluster": {"machines": machines}, "objective": "iteration_time"})
    assert [words in one.text for one in problem.key_assumptions if "kernels" in one.text] == [True]
