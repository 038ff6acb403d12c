"""The export for DistributedDataParallel: buckets as DDP forms them, shares, and scripts that a shell takes."""

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import TELLS, planned, question, run_shell, written

import planner
from planner.errors import InfeasibleError, SpecError
from planner.exporters import degrees_of
from planner.exporters.buckets import GradientTensors
from planner.exporters.data_parallel import EXPORTERS
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.all_reduce.fusion import DDP_CAP_BYTES, DDP_FIRST_BYTES, MIB, best_ends, ddp_buckets


def numbers(name: str) -> dict[str, Any]:
    """What the exported program reads of a plan."""
    found: dict[str, Any] = json.loads(planner.export(planned(name), "ddp").files["planned_ddp.json"])
    return found


def exchange_of(name: str) -> GradientTensors:
    """The gradients of a plan, as single tensors."""
    plan = planned(name)
    assert isinstance(plan.configuration, AllReduceConfiguration)
    return GradientTensors(planner.load(question(name)), plan.configuration)


@pytest.mark.parametrize("name", ["alike", "mixed", "passes"])
def test_the_limits_that_are_written_form_the_planned_groups(name: str) -> None:
    exchange, found = exchange_of(name), numbers(name)
    limits = [elements * found["gradient_bytes"] for elements in found["bucket_elements"]]
    formed = ddp_buckets(exchange.size_bytes, limits)
    assert formed.ends == exchange.planned_ends
    assert len(formed.ends) == len(exchange.configuration.fusion_groups)
    sizes = [group.size_bytes for group in exchange.configuration.fusion_groups]
    assert exchange.group_bytes(formed.ends) == tuple(sizes)
    assert exchange.iteration_time_s(formed.ends) == pytest.approx(found["predicted_s"])


@pytest.mark.parametrize("name", ["alike", "mixed", "passes"])
def test_no_constant_size_is_better_than_the_best_one_and_none_better_than_all_cuts(name: str) -> None:
    exchange, found = exchange_of(name), numbers(name)
    size_bytes = found["constant_elements"] * found["gradient_bytes"]
    formed = ddp_buckets(exchange.size_bytes, [size_bytes])
    assert [one // found["gradient_bytes"] for one in exchange.group_bytes(formed.ends)] == found[
        "constant_bucket_elements"
    ]
    best_s = exchange.iteration_time_s(formed.ends)
    assert best_s == pytest.approx(found["predicted_constant_s"])
    total = float(exchange.size_bytes.sum())
    for other in np.geomspace(exchange.size_bytes.min(), total, 60):
        assert exchange.iteration_time_s(ddp_buckets(exchange.size_bytes, [other]).ends) >= best_s * (1 - 1e-9)
    # The plan's groups end at layers; an optimum that may cut between the tensors of a layer bounds both.
    least_s = exchange.iteration_time_s(best_ends(exchange.exchange))
    assert least_s <= min(best_s, found["predicted_s"]) * (1 + 1e-9)


def test_a_size_is_written_with_few_digits_and_still_forms_the_same_buckets() -> None:
    exchange = exchange_of("alike")
    fused = exchange.best_cap
    mib = exchange.mib_of(fused)
    assert ddp_buckets(exchange.size_bytes, [mib * MIB]).ends == fused.ends
    assert len(f"{mib:g}") <= 5


@pytest.mark.parametrize("name", ["alike", "mixed", "passes"])
def test_what_an_older_pytorch_forms_is_written_with_its_cap_and_its_default(name: str) -> None:
    exchange, found = exchange_of(name), numbers(name)
    constant = ddp_buckets(exchange.size_bytes, [found["bucket_cap_mb"] * MIB])
    sizes = [size // found["gradient_bytes"] for size in exchange.group_bytes(constant.ends)]
    assert sizes == found["constant_bucket_elements"]
    usual = ddp_buckets(exchange.size_bytes, [DDP_FIRST_BYTES, DDP_CAP_BYTES])
    assert found["predicted_default_s"] == pytest.approx(exchange.iteration_time_s(usual.ends))
    assert found["is_default_better"] is (found["predicted_default_s"] < found["predicted_constant_s"])
    notes = planner.export(planned(name), "ddp").notes
    (cap,) = (
        note for note in notes if f"bucket_cap_mb {found['bucket_cap_mb']:g} (MiB; of the first bucket, too)" in note
    )
    (default,) = (note for note in notes if note.startswith("DDP's default there (1 MiB, then 25 MiB): "))
    assert f"predicted {found['predicted_constant_s']:.4g} s" in cap
    assert f"predicted {found['predicted_default_s']:.4g} s" in default
    assert ("so it is kept" in default) is found["is_default_better"]


def test_what_a_constant_size_loses_is_said() -> None:
    found = planner.export(planned("alike"), "ddp")
    said = next(note for note in found.notes if "best constant bucket_cap_mb" in note)
    numbers_found = numbers("alike")
    lost = numbers_found["predicted_constant_s"] / numbers_found["predicted_s"] - 1
    assert lost > 5e-5
    assert f"{lost:.2%} slower than the plan" in said
    assert all(f"# {note}" in found.files["launch.sh"] for note in found.notes)


# -- scripts -----------------------------------------------------------------------------------------------------------


def torchrun(folder: Path, name: str, rank: int, **settings: str) -> str:
    """The words that one machine's script gives to torchrun."""
    written(folder, planner.export(planned(name), "ddp", **settings).files)
    (line,) = run_shell(folder, "launch.sh", {"torchrun": TELLS}, NODE_RANK=str(rank), MASTER_ADDR="first")
    return line


def test_every_machine_starts_as_many_processes_as_it_has_devices(tmp_path: Path) -> None:
    for rank, devices in ((0, 4), (1, 4), (2, 2), (4, 2)):
        line = torchrun(tmp_path, "mixed", rank)
        assert f"[--nnodes][5][--nproc-per-node][{devices}][--node-rank][{rank}][--master-addr][first]" in line
        assert line.endswith("/planned_ddp.py][--demo][1]")
    assert torchrun(tmp_path, "one", 0).startswith("[--standalone][--nproc-per-node][1][")


def test_a_program_of_ones_own_keeps_its_words_and_none_is_run(tmp_path: Path) -> None:
    script = "train.py --name 'my net' $(touch hit) ; touch hit & `touch hit` \"a'b\""
    line = torchrun(tmp_path, "alike", 0, script=script)
    assert line.endswith("[train.py][--name][my net][$(touch][hit)][;][touch][hit][&][`touch][hit`][a'b]")
    assert not (tmp_path / "hit").exists()


def test_our_program_is_found_beside_the_script_whatever_the_folder_it_is_started_in(tmp_path: Path) -> None:
    (tmp_path / "launch").mkdir()
    script = "python planned_ddp.py --factory 'my nets:unet'"
    found = planner.export(planned("one"), "ddp", script=script)
    assert not any("your program" in note for note in found.notes)
    written(tmp_path / "launch", found.files)
    (line,) = run_shell(tmp_path, "launch/launch.sh", {"torchrun": TELLS})
    assert line.endswith(f"[{tmp_path}/launch/planned_ddp.py][--factory][my nets:unet]")


@pytest.mark.parametrize("target", ["ddp", "slurm"])
def test_names_of_the_question_cannot_become_commands(tmp_path: Path, target: str) -> None:
    asked = json.loads(json.dumps(question("mixed")))
    for index, machines in enumerate(asked["cluster"]["machines"]):
        machines["name"] = f"x{index}\ntouch hit\n$(touch hit)`touch hit`'\"; touch hit #"
        device = {"name": f"d{index}\ntouch hit\n#SBATCH --uid=0", "fp32": f"{10 + index} TFLOP/s", "memory": "16 GiB"}
        machines["device"] = device
    files = planner.export(planner.plan(planner.load(asked)), target).files
    written(tmp_path, files)
    run_shell(tmp_path, "launch.sh", {"torchrun": TELLS}, NODE_RANK="0", MASTER_ADDR="first")
    assert not (tmp_path / "hit").exists()
    for line in files.get("job.sbatch", "").splitlines():
        assert not line.startswith("#SBATCH --uid")
        assert line.startswith("#") or "hit" not in line


def test_the_program_is_python_and_its_numbers_are_the_plans() -> None:
    found = planner.export(planned("mixed"), "ddp")
    ast.parse(found.files["planned_ddp.py"])
    block = json.loads(found.files["planned_ddp.json"])
    assert sum(row["num_machines"] * row["devices_per_machine"] for row in block["ranks"]) == block["num_devices"] == 14
    shares = sum(row["num_machines"] * row["devices_per_machine"] * row["batch_per_device"] for row in block["ranks"])
    assert 0 <= shares - block["global_batch_size"] < block["num_devices"]
    assert any("ShareBatches" in note and "weight()" in note for note in found.notes)
    assert sum(block["tensor_elements"]) == sum(block["bucket_elements"]) == sum(block["constant_bucket_elements"])


def test_one_algorithm_is_asked_of_nccl_and_several_are_noted() -> None:
    one, several = planner.export(planned("mixed"), "ddp"), planner.export(planned("alike"), "ddp")
    configuration = planned("mixed").configuration
    assert isinstance(configuration, AllReduceConfiguration)
    assert {group.algorithm for group in configuration.fusion_groups} == {"tree"}
    assert 'export NCCL_ALGO="${NCCL_ALGO:-Tree}"' in one.files["launch.sh"]
    assert "NCCL_ALGO=" not in several.files["launch.sh"]


def test_what_ddp_does_not_do_by_itself_is_noted() -> None:
    plan = planned("passes")
    assert any("no_sync()" in note for note in planner.export(plan, "ddp").notes)
    compressed = {**question("alike"), "compression": {"time": "1 us", "at_most": 0.9}}
    notes = planner.export(planner.plan(planner.load(compressed)), "ddp").notes
    assert any("leaves out" in note and "register_comm_hook" in note for note in notes)


def test_a_layout_that_only_copies_a_transformer_runs_without_buckets_of_the_plan() -> None:
    found = planner.export(planned("copies"), "ddp")
    block = json.loads(found.files["planned_ddp.json"])
    assert block["bucket_elements"] == []
    assert block["ranks"][0]["batch_per_device"] * 16 == 64
    assert any("does not say how to fuse" in note for note in found.notes)


def test_the_made_up_module_of_a_layout_has_the_networks_tensors() -> None:
    dnn = planner.load(question("copies")).dnn
    assert sum(numbers("copies")["tensor_elements"]) == sum(layer.num_trainable for layer in dnn.layers) > 0


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("servers", "it keeps the parameters on servers"),
        ("replicas", "it splits layers over workers"),
        ("pipeline", "it cuts the network into stages"),
        ("hybrid", "the plan has tensor 2"),
    ],
)
def test_plans_that_ddp_cannot_run_are_refused_with_those_that_can(name: str, why: str) -> None:
    with pytest.raises(InfeasibleError, match=why):
        planner.export(planned(name), "ddp")


def test_a_layout_that_is_no_copy_is_refused_with_what_to_pin() -> None:
    with pytest.raises(InfeasibleError, match=r"Pin all degrees but data to 1, and fix\.zero_stage: 0"):
        planner.export(planned("hybrid"), "ddp")


# -- and back ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["alike", "passes", "copies", "mixed"])
def test_an_export_read_back_pins_the_same_plan(name: str) -> None:
    plan = planned(name)
    text = planner.export(plan, "ddp").files["planned_ddp.json"]
    path = Path("planned_ddp.json")
    assert EXPORTERS["ddp"].recognises(path, text)
    pins = EXPORTERS["ddp"].degrees(path, text)
    asked = question(name)
    again = planner.plan(planner.load({**asked, "fix": {**asked.get("fix", {}), **pins}}))
    assert again.configuration == plan.configuration
    # And without any of the pins of the question, the same degrees.
    free = planner.plan(planner.load({**asked, "fix": dict(pins)}))
    document, wanted = free.configuration.to_document(), plan.configuration.to_document()
    for key in ("num_devices", "num_machines", "gradient_accumulation_steps", "data", "microbatch"):
        assert document.get(key) == wanted.get(key)


def test_a_file_that_was_changed_for_the_worse_is_refused_by_name() -> None:
    text = planner.export(planned("alike"), "ddp").files["planned_ddp.json"]
    path = Path("planned_ddp.json")
    for old, new, field in (
        ('"num_devices": 32', '"num_devices": 0', "num_devices"),
        ('"num_machines": 4,', '"num_machines": "four",', "num_machines"),
        ('"ranks": [', '"rows": [', "ranks"),
    ):
        assert old in text
        with pytest.raises(SpecError, match=field):
            EXPORTERS["ddp"].degrees(path, text.replace(old, new, 1))
    with pytest.raises(SpecError, match="no JSON"):
        EXPORTERS["ddp"].degrees(path, text[:300])
    assert not EXPORTERS["ddp"].recognises(path, "{}")


def test_files_of_other_programs_are_of_no_target() -> None:
    assert degrees_of(Path("x.yaml"), "a: 1\n") is None
    assert degrees_of(Path("x.json"), '{"schema": "planner.plan/1"}') is None
    text = planner.export(planned("alike"), "ddp").files["planned_ddp.json"]
    found = degrees_of(Path("any.name"), text)
    assert found is not None
    assert found[0] == "ddp"


def test_a_configuration_of_one_group_has_one_bucket() -> None:
    plan = planned("alike")
    assert isinstance(plan.configuration, AllReduceConfiguration)
    names = tuple(name for group in plan.configuration.fusion_groups for name in group.tensors)
    total = sum(group.size_bytes for group in plan.configuration.fusion_groups)
    whole = replace(plan.configuration.fusion_groups[0], tensors=names, size_bytes=total)
    problem = planner.load(question("alike"))
    changed = replace(plan.configuration, fusion_groups=(whole,))
    assert GradientTensors(problem, changed).planned_ends == (len(exchange_of("alike").size_bytes) - 1,)
