"""What the sample adds keeps the contracts of planner, and works in a question.

Run with the package installed: ``python -m pytest``.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planner_sample.collective import halving_doubling

import planner
from planner.models.communication import Participants, ring_all_reduces
from planner.testing import QUESTIONS, check_all_reduce, check_device, check_exporter, check_family

FAMILY = "plain_data_parallel"
DNN = {"zoo": "resnet50", "global_batch": 256}
MACHINES = [{"count": 4, "devices": 2, "device": "sample-npu", "inside": "pcie-4-x16", "network": "100 Gbit/s"}]
QUESTION: dict[str, Any] = {"dnn": DNN, "cluster": {"machines": MACHINES}}


@pytest.mark.parametrize("name", [name for name in QUESTIONS if not name.startswith("preset")])
def test_the_family_keeps_the_contract(name: str) -> None:
    found = check_family(FAMILY, QUESTIONS[name])
    assert found is not None or name in ("mixed machines", "a pinned device"), "it answers on equal machines"


def test_the_collective_keeps_the_contract_and_beats_a_ring_where_hops_count() -> None:
    check_all_reduce("halving_doubling")
    places = Participants(
        num_devices=np.array([64]),
        num_machines=np.array([64]),
        devices_per_machine=1,
        network_bytes_per_s=1e10,
        network_latency_s=1e-5,
    )
    ours, ring = halving_doubling(places), ring_all_reduces(num_devices=np.array([64]), **places.flat)
    assert ours.startup_s[0] == pytest.approx(ring.startup_s[0] * 12 / 126)
    assert ours.per_byte_s[0] == pytest.approx(ring.per_byte_s[0])


def test_the_device_has_what_predictions_need() -> None:
    check_device("sample-npu")


def test_a_question_names_all_of_them() -> None:
    calibration = {"algorithms": ["ring", "halving_doubling"]}
    own = planner.plan({**QUESTION, "families": [FAMILY]})
    both = planner.plan({**QUESTION, "families": [FAMILY, "all_reduce"], "calibration": calibration})
    assert own.family == FAMILY
    assert both.objective <= own.objective
    names = {"planner.devices:sample-npu", "planner.cost_models:halving_doubling", "planner.families:" + FAMILY}
    assert {*own.provenance.plugins, *both.provenance.plugins} == names
    two = {**QUESTION, "families": [FAMILY], "fix": {"num_machines": 2}}
    assert planner.plan(two).configuration.to_document()["num_machines"] == 2
    assert planner.check(two, planner.plan(two)).is_ok
    pinned = {**QUESTION, "families": ["all_reduce"], "fix": {"algorithm": "halving_doubling"}}
    assert planner.check(pinned, planner.plan(pinned)).is_ok


def test_a_configuration_of_the_family_is_predicted_and_a_wrong_one_is_refused() -> None:
    given = {"configuration": {FAMILY: {"num_machines": 2}}}
    assert planner.predict({**QUESTION, **given}).details["batch_per_device"] == 64
    with pytest.raises(planner.errors.SpecError, match="no number from 1 to 4"):
        planner.predict({**QUESTION, "configuration": {FAMILY: {"num_machines": 5}}})


def test_the_exporter_keeps_the_contract() -> None:
    check_exporter("sample-json", planner.plan({**QUESTION, "families": [FAMILY]}))


def test_a_file_of_measured_layers_is_a_network(tmp_path: Path) -> None:
    lines = ["sample layers 1", "conv1 forward 0.0021 backward 0.0040 parameters 9408 output 802816"]
    lines += ["fc forward 0.0004 backward 0.0008 parameters 2048000 output 1000"]
    path = tmp_path / "net.layers"
    path.write_text("\n".join(lines), encoding="utf-8")
    dnn = {"profile": str(path), "profile_batch": 8, "global_batch": 64, "dataset_samples": 1000}
    problem = planner.load({**QUESTION, "dnn": dnn, "families": ["all_reduce"]})
    assert [layer.name for layer in problem.dnn.layers] == ["data", "conv1", "fc"]
    path.write_text("sample layers 1\nconv1 forward soon", encoding="utf-8")
    with pytest.raises(planner.errors.SpecError, match=":2: "):
        planner.load({**QUESTION, "dnn": dnn})
