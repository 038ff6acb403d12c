"""The export for Horovod: threshold and cycle, the planned groups, and the words of horovodrun."""

import json
from pathlib import Path
from typing import Any

import pytest
from exported import TELLS, planned, question, run_shell, written

import planner
from planner.errors import InfeasibleError, SpecError
from planner.exporters.data_parallel import EXPORTERS
from planner.families.all_reduce.fusion import MIB


def environment(name: str, folder: Path, **settings: Any) -> tuple[dict[str, str], str]:
    """The variables that horovodrun sees, and its words."""
    written(folder, planner.export(planned(name), "horovod", **settings).files)
    lines = run_shell(folder, "launch.sh", {"horovodrun": f"env | grep ^HOROVOD_; {TELLS}"}, HOSTS="a:8,b:8")
    return dict(line.split("=", 1) for line in lines[:-1]), lines[-1]


def test_the_script_gives_threshold_and_cycle_and_one_process_a_device(tmp_path: Path) -> None:
    found, words = environment("alike", tmp_path, script="train.py --name 'a b'")
    block = json.loads(planner.export(planned("alike"), "horovod").files["planned_horovod.json"])
    assert found["HOROVOD_FUSION_THRESHOLD"] == str(block["fusion_threshold_bytes"])
    assert float(found["HOROVOD_CYCLE_TIME"]) == block["cycle_time_ms"]
    assert words == "[-np][32][-H][a:8,b:8][--no-autotune][python][train.py][--name][a b]"
    assert environment("one", tmp_path)[1] == "[-np][1][--no-autotune][python][train.py]"


def test_a_calibrated_timeout_is_the_cycle() -> None:
    asked = {**question("alike"), "calibration": {"wait": "exact", "timeout": "7 ms"}}
    found = planner.export(planner.plan(planner.load(asked)), "horovod")
    assert "export HOROVOD_CYCLE_TIME=7\n" in found.files["launch.sh"]


def test_waiting_for_cycles_costs_what_is_said() -> None:
    plan = planned("alike")
    block = json.loads(planner.export(plan, "horovod").files["planned_horovod.json"])
    assert block["predicted_s"] >= plan.prediction.iteration_time_s
    assert block["predicted_s"] < plan.prediction.iteration_time_s * 1.1
    assert block["fusion_threshold_bytes"] % 4 == 0
    assert block["fusion_threshold_bytes"] < 2 * sum(block["group_elements"]) * 4 + MIB


def test_the_planned_groups_hold_as_many_numbers_as_the_plans() -> None:
    plan = planned("mixed")
    block = json.loads(planner.export(plan, "horovod").files["planned_horovod.json"])
    sizes = [row["size_bytes"] / 4 for row in plan.configuration.to_document()["fusion_groups"]]
    assert block["group_elements"] == sizes


def test_the_program_makes_the_planned_groups_of_a_module(tmp_path: Path) -> None:
    written(tmp_path, planner.export(planned("alike"), "horovod").files)
    (tmp_path / "planned_horovod.json").write_text(json.dumps({"group_elements": [10, 3, 7]}))
    names: dict[str, Any] = {"__file__": str(tmp_path / "planned_horovod.py"), "__name__": "planned_horovod"}
    exec(compile((tmp_path / "planned_horovod.py").read_text(), "planned_horovod.py", "exec"), names)

    class Parameter:
        requires_grad = True

        def __init__(self, number: int) -> None:
            self.number = number

        def numel(self) -> int:
            return self.number

    class Module:
        def parameters(self) -> list[Parameter]:
            return [Parameter(number) for number in (4, 3, 1, 2, 6, 4)]

    found = names["groups"](Module())
    assert [[one.number for one in group] for group in found] == [[4, 6], [2, 1], [3, 4]]


def test_unequal_shares_and_several_algorithms_are_noted() -> None:
    mixed, alike = planner.export(planned("mixed"), "horovod"), planner.export(planned("alike"), "horovod")
    assert any("multiply the mean loss" in note for note in mixed.notes)
    assert any("by group" in note for note in alike.notes)
    assert any("backward_passes_per_step=3" in note for note in planner.export(planned("passes"), "horovod").notes)


def test_unlike_numbers_of_passes_are_refused() -> None:
    asked = {
        **question("mixed"),
        "configuration": {
            "all_reduce": {
                "groups": {
                    "new": {"machines": 2, "batch_per_device": 48, "gradient_accumulation_steps": 2},
                    "old": {"machines": 3, "batch_per_device": 20},
                },
                "fusion_groups": "one",
            }
        },
    }
    from dataclasses import replace

    from planner.api import configuration_of

    problem = planner.load(asked)
    _, configuration = configuration_of(problem)
    prediction = planner.predict(problem)
    plan = replace(
        planned("mixed"), configuration=configuration, prediction=prediction, objective=prediction.iteration_time_s
    )
    with pytest.raises(InfeasibleError, match=r"unlike numbers of passes.*Targets that can: ddp"):
        planner.export(plan, "horovod")


def test_an_export_read_back_pins_the_same_degrees() -> None:
    for name in ("alike", "passes"):
        plan = planned(name)
        text = planner.export(plan, "horovod").files["planned_horovod.json"]
        assert EXPORTERS["horovod"].recognises(Path("x"), text)
        pins = EXPORTERS["horovod"].degrees(Path("x"), text)
        again = planner.plan(planner.load({**question(name), "fix": dict(pins)}))
        assert again.configuration == plan.configuration


def test_a_file_that_was_changed_for_the_worse_is_refused_by_name() -> None:
    text = planner.export(planned("alike"), "horovod").files["planned_horovod.json"]
    with pytest.raises(SpecError, match="num_machines: 64 machines"):
        EXPORTERS["horovod"].degrees(Path("x"), text.replace('"num_machines": 4', '"num_machines": 64'))
    with pytest.raises(SpecError, match="num_devices"):
        EXPORTERS["horovod"].degrees(Path("x"), text.replace('"num_devices": 32', '"num_devices": true'))
