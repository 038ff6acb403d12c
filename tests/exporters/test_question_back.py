"""A question, its launch files, and the question that an import of these files asks: the same, and the same answer."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hybrid_questions import TINY
from layout_jobs import planned, uneven_job
from modern_blocks import DEEPSEEK, LLAMA, QWEN

import planner
from planner.errors import InfeasibleError, SpecError
from planner.exporters import degrees_of, export, megatron
from planner.exporters.export import Export, Job
from planner.families.hybrid.configuration import HybridConfiguration
from planner.network_import import ImportedFile, import_file
from planner.plan import Plan
from planner.problem import Problem

pytestmark = pytest.mark.usefixtures("wordless")

READER = megatron.EXPORTERS["megatron"]
FIRST = {"megatron": "launch.sh", "megatron-bridge": "recipe.py", "primus": "primus.yaml", "maxtext": "maxtext.yml"}
FIRST |= {"torchtitan": "launch.sh", "deepspeed": "ds_config.json", "accelerate": "accelerate.yaml"}
OURS = ("megatron", "megatron-bridge", "primus")
CLUSTER = {"machines": [{"count": 2, "device": "gb300", "devices": 4, "network": "400 Gbit/s", "latency": "5 us"}]}
LORA = {"method": "lora", "rank": 8, "alpha": 16.0, "targets": ["qkv", "down"]}
CASES: Mapping[str, Mapping[str, Any]] = {
    "bf16": {"transformer": LLAMA, "dtype": "bf16", "optimizer": "adam"},
    "fp16": {"transformer": LLAMA, "dtype": "fp16", "optimizer": "momentum"},
    "fp8": {"transformer": QWEN, "dtype": "fp8", "fp8_recipe": "delayed", "optimizer": "adam_bf16"},
    "blockwise": {"transformer": QWEN, "dtype": "fp8", "fp8_recipe": "blockwise", "optimizer": "adam"},
    "mxfp8": {"transformer": DEEPSEEK, "dtype": "mxfp8", "bf16_layers": 2, "optimizer": "adam_fp8"},
    "nvfp4": {"transformer": LLAMA, "dtype": "nvfp4", "bf16_layers": 1, "optimizer": "adam"},
    "muon": {"transformer": LLAMA, "dtype": "bf16", "optimizer": "muon"},
    "sgd": {"transformer": LLAMA, "dtype": "bf16", "optimizer": "sgd"},
}


def asked(dnn: Mapping[str, Any], **more: Any) -> Problem:
    """A question of 16 samples on eight devices."""
    return planner.load({"dnn": {"global_batch": 16, **dnn}, "cluster": CLUSTER, "families": ["hybrid"], **more})


@cache
def planned_case(name: str, program: str) -> tuple[Problem, Plan]:
    """A case, asked of a program, and its plan."""
    problem = asked(CASES[name], calibration={"program": program})
    return problem, planner.plan(problem)


def written(target: str, problem: Problem, folder: Path, plan: Plan | None = None) -> tuple[Job, Export, ImportedFile]:
    """The plan of a question, its launch files in a folder, and what an import finds in them."""
    job = Job(problem=problem, plan=plan or planner.plan(problem))
    files = export(target, job)
    for name, text in files.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return job, files, import_file(folder / FIRST[target])


@pytest.mark.parametrize(
    ("target", "name"),
    [
        *(("megatron", name) for name in CASES),
        *((name, case) for name in OURS[1:] for case in ("fp8", "mxfp8", "muon")),
    ],
)
def test_the_question_of_a_file_is_the_one_that_was_asked_and_so_is_its_answer(
    target: str, name: str, tmp_path: Path
) -> None:
    program = "primus" if target == "primus" else "megatron-core"
    problem, plan = planned_case(name, program)
    found = written(target, problem, tmp_path, plan)[2]
    blocks = {key: dict(block) for key, block in found.blocks.items()}
    again = planner.load({**blocks, "cluster": CLUSTER, "families": ["hybrid"]})
    assert again.training == problem.training
    assert again.dnn.transformer == problem.dnn.transformer
    answer = planner.plan(again)
    assert answer.configuration == plan.configuration
    assert answer.prediction.iteration_time_s == pytest.approx(plan.prediction.iteration_time_s, rel=1e-12)
    assert not found.warnings


@pytest.mark.parametrize(
    ("calibration", "options"),
    [({"gradients": "bf16"}, "--grad-reduce-in-bf16"), ({"cuda_graphs": True}, "--cuda-graph-impl"), ({}, "--bf16")],
)
def test_what_a_calibration_says_of_a_program_is_read_back(
    calibration: Mapping[str, Any], options: str, tmp_path: Path
) -> None:
    problem = asked(CASES["bf16"], calibration={"program": "megatron-core", **calibration})
    _, files, found = written("megatron", problem, tmp_path)
    assert options in files.files["launch.sh"]
    assert found.training.calibration == {"program": "megatron-core", **calibration}


def test_captured_kernels_are_what_short_numbers_have_unless_a_file_says_otherwise(tmp_path: Path) -> None:
    problem = asked(CASES["mxfp8"], calibration={"program": "megatron-core", "cuda_graphs": False})
    assert written("megatron", problem, tmp_path)[2].training.calibration["cuda_graphs"] is False


def test_adapters_are_read_from_a_recipe_and_from_what_peft_reads(tmp_path: Path) -> None:
    dnn = {"transformer": LLAMA, "dtype": "bf16", "optimizer": "adam", "fine_tuning": LORA}
    problem = asked(dnn)
    job, _, found = written("megatron-bridge", problem, tmp_path)
    assert found.training.dnn["fine_tuning"] == LORA
    again = planner.load({**{key: dict(one) for key, one in found.blocks.items()}, "cluster": CLUSTER})
    assert again.dnn.transformer == problem.dnn.transformer
    predicted = planner.predict(again, job.plan.configuration)
    assert predicted.iteration_time_s == pytest.approx(job.plan.prediction.iteration_time_s)
    four = asked({**dnn, "fine_tuning": {**LORA, "method": "qlora"}})
    read = {"method": "qlora", "rank": 8, "alpha": 16.0, "targets": ["query", "key", "value", "down"]}
    for target in ("deepspeed", "accelerate"):
        folder = tmp_path / target
        folder.mkdir()
        assert written(target, four, folder)[2].training.dnn["fine_tuning"] == read
        assert not (folder / "recipe.py").exists()


def test_adapters_for_torchtitan_are_read_from_its_module(tmp_path: Path) -> None:
    dnn = {"transformer": LLAMA, "dtype": "bf16", "optimizer": "adam", "fine_tuning": LORA}
    problem = asked(dnn, calibration={"program": "torchtitan"})
    job, files, found = written("torchtitan", problem, tmp_path)
    text = files.files["planned_torchtitan.py"]
    assert 'ADAPTERS = {"rank": 8, "alpha": 16.0, "target_modules": ["wqkv", "w2"]}' in text
    assert found.training.dnn["fine_tuning"] == LORA
    again = planner.load({**{key: dict(one) for key, one in found.blocks.items()}, "cluster": CLUSTER})
    assert again.dnn.transformer == problem.dnn.transformer
    both = asked({**dnn, "fine_tuning": {**LORA, "targets": ["gate_up"]}}, calibration={"program": "torchtitan"})
    assert any("gate and up are two" in note for note in export("torchtitan", replace(job, problem=both)).notes)
    for tuning, why in (
        ({**LORA, "method": "qlora"}, "no weights in four bits"),
        ({**LORA, "targets": ["query"]}, "no adapter of query alone"),
    ):
        other = asked({**dnn, "fine_tuning": tuning}, calibration={"program": "torchtitan"})
        with pytest.raises(InfeasibleError, match=why):
            export("torchtitan", replace(job, problem=other))


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "mxfp8"])
def test_a_module_of_torchtitan_says_its_numbers(dtype: str, tmp_path: Path) -> None:
    dnn = {**CASES["bf16"], "dtype": dtype, **({"bf16_layers": 1} if dtype != "bf16" else {})}
    problem = asked(dnn, calibration={"program": "torchtitan"})
    _, _, found = written("torchtitan", problem, tmp_path)
    assert {**found.training.dnn, "optimizer": "adam"} == {
        **{key: value for key, value in dnn.items() if key != "transformer"},
        **({"fp8_recipe": "current"} if dtype == "fp8" else {}),
        "global_batch": 16,
    }
    assert found.training.calibration == {"program": "torchtitan"}
    again = planner.load({**{key: dict(one) for key, one in found.blocks.items()}, "cluster": CLUSTER})
    assert again.dnn.transformer == problem.dnn.transformer
    assert again.training == problem.training


def test_maxtext_says_numbers_optimiser_and_batch(tmp_path: Path) -> None:
    dnn = {**CASES["bf16"], "optimizer": "muon"}
    assert written("maxtext", asked(dnn, fix={"num_stages": 1}), tmp_path)[2].training.dnn == {
        "global_batch": 16,
        "dtype": "bf16",
        "optimizer": "muon",
    }


def test_what_deepspeed_and_accelerate_leave_to_the_program_is_said(tmp_path: Path) -> None:
    for target, said in (("deepspeed", {"dtype": "bf16", "global_batch": 16}), ("accelerate", {"dtype": "bf16"})):
        folder = tmp_path / target
        folder.mkdir()
        found = written(target, asked(CASES["bf16"], fix={"num_devices": 8, "zero_stage": 2}), folder)[2]
        assert found.training.dnn == said
        assert any("write dnn.optimizer" in one for one in found.warnings)


def test_the_network_of_deepspeed_is_read_from_what_stands_beside_it(tmp_path: Path) -> None:
    problem = asked(CASES["bf16"], fix={"num_devices": 8, "zero_stage": 2, "num_stages": 1})
    job, files, _ = written("deepspeed", problem, tmp_path)
    assert "config.json" in files.files
    known = problem.dnn.transformer
    assert known is not None
    found = import_file(tmp_path / "ds_config.json", sequence_length=known.sequence_length)
    blocks = {key: dict(block) for key, block in found.blocks.items()}
    blocks["dnn"]["optimizer"] = "adam"
    again = planner.load({**blocks, "cluster": CLUSTER, "families": ["hybrid"]})
    network = again.dnn.transformer
    assert network is not None
    assert network.rotary is not None
    # Positions are meant for what a sample has where nothing else was said.
    network = replace(network, rotary=replace(network.rotary, longest=None))
    assert (again.training, network) == (problem.training, known)
    predicted = planner.predict(again, job.plan.configuration)
    assert predicted.iteration_time_s == pytest.approx(job.plan.prediction.iteration_time_s)


@pytest.mark.parametrize("target", FIRST)
def test_a_folder_and_the_script_in_it_say_what_its_files_say(target: str, tmp_path: Path) -> None:
    found = written(target, asked(CASES["bf16"], fix={"num_devices": 8, "zero_stage": 2, "num_stages": 1}), tmp_path)[2]
    assert import_file(tmp_path) == import_file(tmp_path / "launch.sh") == found


def test_stages_of_deepspeed_are_read_with_its_configuration(tmp_path: Path) -> None:
    for name, text in export("deepspeed", uneven_job((1, 2, 1), data=2)).files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = import_file(tmp_path)
    assert found.block["layers_per_stage"] == [1, 2, 1]
    assert found.training.dnn["global_batch"] == 8


def test_a_folder_without_launch_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "some.json").write_text("{}")
    with pytest.raises(SpecError, match="none of its files is a launch file of `planner export`"):
        import_file(tmp_path)


def test_a_folder_of_two_programs_is_refused_with_a_file_of_each(tmp_path: Path) -> None:
    problem = asked(CASES["bf16"], fix={"num_devices": 8, "zero_stage": 2, "num_stages": 1})
    written("deepspeed", problem, tmp_path)
    written("primus", problem, tmp_path)
    with pytest.raises(SpecError, match=r"files of deepspeed \(ds_config\.json\) and primus \(primus\.yaml\)"):
        import_file(tmp_path)


def test_adapters_beside_frozen_parts_are_refused(tmp_path: Path) -> None:
    tuning = {"fine_tuning": {"method": "lora", "rank": 8, "alpha": 16}}
    problem = asked({**CASES["bf16"], **tuning}, fix={"num_devices": 8, "zero_stage": 2, "num_stages": 1})
    written("deepspeed", problem, tmp_path)
    (tmp_path / "frozen.json").write_text('{"layers": 2}')
    with pytest.raises(SpecError, match=r"frozen\.json: adapters .* freeze all of the network already. Remove one"):
        import_file(tmp_path)


@pytest.mark.parametrize("target", ["deepspeed", "accelerate"])
def test_frozen_parts_are_read_back(target: str, tmp_path: Path) -> None:
    frozen = {"layers": 2, "parts": ["head"]}
    problem = asked({**CASES["bf16"], "frozen": frozen}, fix={"num_devices": 8, "zero_stage": 2, "num_stages": 1})
    found = written(target, problem, tmp_path)[2]
    assert found.training.dnn["frozen"] == frozen
    (tmp_path / "frozen.json").write_text('{"parts": ["tail"]}')
    with pytest.raises(SpecError, match=r"parts: .*are no parts"):
        import_file(tmp_path)
    (tmp_path / "frozen.json").write_text('{"layer": 2}')
    with pytest.raises(SpecError, match=r"frozen\.json: it freezes nothing"):
        import_file(tmp_path)


@pytest.mark.parametrize(
    ("target", "old", "new", "why"),
    [
        ("megatron", "--fp8-recipe mxfp8", "--fp8-recipe some", "fp8-recipe: 'some' is none"),
        ("megatron", "--exp-avg-dtype fp8", "--optimizer lion --exp-avg-dtype fp8", "optimizer: 'lion' is none"),
        ("primus", "fp8_recipe: mxfp8", "fp8_recipe: 7", "fp8-recipe: '7' is none"),
    ],
)
def test_names_that_are_none_are_refused_with_their_place(
    target: str, old: str, new: str, why: str, tmp_path: Path
) -> None:
    written(target, asked(CASES["mxfp8"]), tmp_path)
    path = tmp_path / FIRST[target]
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(SpecError, match=why):
        import_file(path)


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge", "primus", "torchtitan", "deepspeed"])
@pytest.mark.parametrize("layers", [(1, 2, 1), (2, 2)])
def test_a_cut_of_layers_is_read_back_and_planned_again(target: str, layers: tuple[int, ...], tmp_path: Path) -> None:
    block = LLAMA if target == "torchtitan" else TINY
    job = uneven_job(layers, block, data=2)
    for name, text in export(target, job).files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    path = tmp_path / ("planned_pipeline.py" if target == "deepspeed" else FIRST[target])
    found = degrees_of(path, path.read_text())
    assert found is not None
    assert found[1]["layers_per_stage"] == list(layers)
    plan = planned(found[1], {**block, "layers": sum(layers)}, batch=8).plan
    assert isinstance(plan.configuration, HybridConfiguration)
    assert plan.configuration.chunk_layers(sum(layers)) == layers


def test_a_file_of_other_stages_than_its_parts_is_refused(tmp_path: Path) -> None:
    text = export("megatron", uneven_job((1, 2, 1), data=2)).files["launch.sh"]
    path = tmp_path / "launch.sh"
    for old, new, why in (
        ("Et*1|t*2|t*1L", "Et*1|t*2|t*1|tL", "4 parts are no 3 stages of 1 each"),
        ("Et*1|t*2|t*1L", "Et*1|x*2|t*1L", "is no layout"),
        ("Et*1|t*2|t*1L", "Et*999999999|t*2|t*1L", "is no layout"),
    ):
        assert old in text
        path.write_text(text.replace(old, new))
        with pytest.raises(SpecError, match=why):
            import_file(path)


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        ("--pipeline-model-parallel-layout Ettt|(tt|)*29,m|L", [3, *[2] * 29, 1, 0]),  # as parse_str_to_list has it
        ("--decoder-first-pipeline-num-layers 11 --decoder-last-pipeline-num-layers 5", [11, 15, 15, 15, 5]),
        ("--decoder-last-pipeline-num-layers 1", [15, 15, 15, 15, 1]),
        ("--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split", None),
        ("", None),
    ],
)
def test_cuts_of_megatron_are_read_as_it_cuts(options: str, layers: list[int] | None) -> None:
    stages = 5 if layers is None or len(layers) == 5 else len(layers)
    text = f"torchrun --nproc-per-node {stages} pretrain_gpt.py --num-layers 61 --hidden-size 64 {options}"
    text += f" --tensor-model-parallel-size 1 --pipeline-model-parallel-size {stages} --micro-batch-size 1"
    pins = READER.degrees(Path("launch.sh"), f"{text} --global-batch-size 8")
    assert pins.get("layers_per_stage") == layers
    if layers is None:
        evenly = READER.degrees(Path("launch.sh"), f"{text.replace('61', '63')} --global-batch-size 8")
        ends = "account" in options
        assert evenly.get("layers_per_stage") == ([12, 13, 13, 13, 12] if ends else None)
