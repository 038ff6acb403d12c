"""The export for SkyPilot, as SkyPilot's own reader of tasks sees it; it lives in an environment of its own."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from exported import planned

import planner

# SkyPilot's pins do not go together with those of the other consumers.
_PYTHON = Path(os.environ.get("PLANNER_SKY", Path(__file__).parents[2] / ".venv-sky" / "bin" / "python"))
pytestmark = pytest.mark.skipif(not _PYTHON.exists(), reason="SkyPilot is not installed; run make test-heavy")
_READER = """
import json, sys, warnings
warnings.simplefilter("ignore")
import sky
from sky.utils import common_utils
task = sky.Task.from_yaml_config(common_utils.read_yaml(sys.argv[1])) if hasattr(common_utils, "read_yaml") else \
    sky.Task.from_yaml(sys.argv[1])
(found,) = task.resources
print("FOUND", json.dumps({"name": task.name, "num_nodes": task.num_nodes, "run": task.run, "setup": task.setup,
      "accelerators": found.accelerators, "use_spot": found.use_spot, "image": found.image_id}))
"""


def read(folder: Path, text: str) -> tuple[dict[str, Any] | None, str]:
    """What SkyPilot makes of a task, and what it says if it makes nothing."""
    path = folder / "task.yaml"
    path.write_text(text)
    environment = {**os.environ, "HOME": str(folder), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    done = subprocess.run(
        [str(_PYTHON), "-c", _READER, str(path)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    lines = [line.removeprefix("FOUND ") for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    return (json.loads(lines[0]) if lines else None), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "nodes", "accelerators"), [("alike", 4, {"V100": 8}), ("hybrid", 2, {"A100-80GB": 8})]
)
def test_skypilot_reads_the_task(tmp_path: Path, name: str, nodes: int, accelerators: dict[str, int]) -> None:
    exported = planner.export(planned(name), "skypilot", name="My Net", script="train.py --x 'a b'")
    found, words = read(tmp_path, exported.files["task.yaml"])
    assert found is not None, words[-2000:]
    assert found["name"] == "my-net"
    assert found["num_nodes"] == nodes
    assert found["accelerators"] == accelerators
    assert "bash launch.sh" in found["run"]


def test_skypilot_takes_the_image_of_a_container(tmp_path: Path) -> None:
    exported = planner.export(planned("alike"), "skypilot", image="pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime")
    found, words = read(tmp_path, exported.files["task.yaml"])
    assert found is not None, words[-2000:]
    assert "docker:pytorch/pytorch:2.13.0" in json.dumps(found["image"])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("num_nodes:", "num_node:", "num_nodes"),
        ("num_nodes: 4", "num_nodes: 0", "num_nodes|positive|greater"),
        ("V100:8", "V100:many", "many|accelerators"),
        ("resources:", "resource:", "resources"),
    ],
)
def test_skypilot_refuses_a_task_that_was_changed_for_the_worse(tmp_path: Path, old: str, new: str, words: str) -> None:
    text = planner.export(planned("alike"), "skypilot").files["task.yaml"]
    assert old in text
    found, said = read(tmp_path, text.replace(old, new, 1))
    assert found is None
    assert any(word in said for word in words.split("|")), said[-1500:]
