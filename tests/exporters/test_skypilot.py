"""The export for SkyPilot: a task of equal machines, with the offer that a purchase chose."""

from pathlib import Path
from typing import Any

import pytest
from exported import TELLS, planned, question, run_shell, written
from purchases import TODAY, asked, row
from ruamel.yaml import YAML

import planner
from planner.answer.documents import dump
from planner.errors import InfeasibleError, SpecError
from planner.exporters.starters import EXPORTERS


def task_of(found: Any) -> dict[str, Any]:
    """The task, as a reader of YAML sees it."""
    task: dict[str, Any] = YAML(typ="safe").load(found.files["task.yaml"])
    return task


def question_with(device: str) -> dict[str, Any]:
    """A question about machines of another device."""
    found = question("alike")
    (machines,) = found["cluster"]["machines"]
    return {**found, "cluster": {"machines": [{**machines, "device": device}]}}


def test_a_task_names_machines_accelerators_and_what_runs() -> None:
    task = task_of(planner.export(planned("alike"), "skypilot", name="Net 1", image="me/net:2"))
    assert task["name"] == "net-1"
    assert task["num_nodes"] == 4
    assert task["resources"] == {"accelerators": "V100:8", "image_id": "docker:me/net:2"}
    assert task["run"].endswith("bash launch.sh\n")
    assert task["setup"].startswith("python -m pip install")


@pytest.mark.parametrize(
    ("device", "name", "word"),
    [
        ("h100-sxm", "H100:8", "stands for several boards"),
        ("a100-sxm4-80gb", "A100-80GB:8", "stands for several boards"),
        ("l4", "L4:8", ""),
        ("rtx-2080-ti", "rtx-2080-ti:8", "not in SkyPilot's catalogue"),
    ],
)
def test_devices_have_skypilots_names_and_doubts_are_said(device: str, name: str, word: str) -> None:
    found = planner.export(planner.plan(planner.load(question_with(device))), "skypilot")
    assert task_of(found)["resources"]["accelerators"] == name
    assert any(word in note for note in found.notes)


def test_the_run_gives_rank_and_address_to_the_script(tmp_path: Path) -> None:
    found = planner.export(planned("alike"), "skypilot")
    work = tmp_path / "sky_workdir"
    work.mkdir()
    written(work, found.files)
    (tmp_path / "run.sh").write_text(task_of(found)["run"])
    (line,) = run_shell(
        tmp_path,
        "run.sh",
        {"torchrun": TELLS},
        SKYPILOT_NODE_RANK="2",
        SKYPILOT_NODE_IPS="10.0.0.9\n10.0.0.1\n10.0.0.3",
    )
    assert "[--node-rank][2][--master-addr][10.0.0.9]" in line


def bought(folder: Path, **changed: Any) -> Path:
    """The answer to a question of a purchase, as a file."""
    offer = row("p3.2xlarge", provider="aws", region="us-east-1", device="v100-sxm2-16g", **changed)
    answer = planner.procure(asked(folder / "prices.csv", [offer], terms=["on-demand", "spot"]), today=TODAY)
    (folder / "answer.json").write_text(dump(answer.to_dict()))
    return folder / "answer.json"


@pytest.mark.parametrize(("term", "is_spot"), [("spot", True), ("on-demand", False)])
def test_a_purchase_says_where_to_rent_and_on_which_term(tmp_path: Path, term: str, is_spot: bool) -> None:
    changed: dict[str, Any] = {"term": term, **({"interruptions_per_h": 0.01} if is_spot else {})}
    found = planner.export(bought(tmp_path, **changed), "skypilot")
    resources = task_of(found)["resources"]
    assert resources["infra"] == "aws/us-east-1"
    assert resources["instance_type"] == "p3.2xlarge"
    assert resources["use_spot"] is is_spot
    assert resources["accelerators"] == "V100:1"


def test_text_of_the_user_stays_text_in_yaml() -> None:
    image = "x: [1] # {a} !!python/object 'q' \"d\" $(reboot)"
    task = task_of(planner.export(planned("alike"), "skypilot", name="no: {yes} # & *", image=image))
    assert task["resources"]["image_id"] == f"docker:{image}"
    assert task["name"] == "no-yes"


@pytest.mark.parametrize(
    ("name", "program", "why"),
    [
        ("mixed", None, "all machines of its tasks are alike"),
        ("servers", None, "parameter servers"),
        ("alike", "horovod", "ssh"),
    ],
)
def test_what_a_task_cannot_run_is_refused(name: str, program: str | None, why: str) -> None:
    with pytest.raises(InfeasibleError, match=why):
        planner.export(planned(name), "skypilot", program=program)


@pytest.mark.parametrize("name", ["alike", "passes", "hybrid"])
def test_a_task_read_back_pins_the_same_machines(name: str) -> None:
    plan = planned(name)
    text = planner.export(plan, "skypilot").files["task.yaml"]
    path = Path("task.yaml")
    assert EXPORTERS["skypilot"].recognises(path, text)
    given = question(name)
    again = planner.plan(
        planner.load({**given, "fix": {**given.get("fix", {}), **EXPORTERS["skypilot"].degrees(path, text)}})
    )
    assert again.configuration == plan.configuration


def test_a_task_that_somebody_else_wrote_is_read_and_a_bad_one_refused() -> None:
    path = Path("a.yaml")
    text = "num_nodes: 2\nresources:\n  accelerators: {A100: 4}\nrun: |\n  python train.py\n"
    assert EXPORTERS["skypilot"].recognises(path, text)
    assert EXPORTERS["skypilot"].degrees(path, text) == {"num_devices": 8, "num_machines": 2}
    assert EXPORTERS["skypilot"].degrees(path, text.replace("{A100: 4}", "A100")) == {
        "num_devices": 2,
        "num_machines": 2,
    }
    for bad in (text.replace("num_nodes: 2", "num_nodes: two"), text.replace("{A100: 4}", "A100:many")):
        with pytest.raises(SpecError, match="no numbers of machines and devices"):
            EXPORTERS["skypilot"].degrees(path, bad)
    assert not EXPORTERS["skypilot"].recognises(Path("a.yaml"), "apiVersion: v1\n")
