"""What a given configuration of parameter servers or replicas may not get wrong in silence."""

import json
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.cli.run import run
from planner.errors import SpecError

BASES: dict[str, dict[str, Any]] = {
    "parameter_server": {"dnn": {"zoo": "alexnet", "batch_per_device": 32}},
    "model_replicas": {"dnn": {"zoo": "adam-mnist", "batch_per_device": 70}, "calibration": {"cores": 16}},
}


def predicted(family: str, block: dict[str, Any], **changes: Any) -> Any:
    machine = {"name": "w", "count": 9, "device": "v100-sxm2-16g", "network": "10 Gbit/s", "latency": "0 s"}
    asked = {**BASES[family], "cluster": {"machines": [machine]}, "configuration": {family: block}, **changes}
    return planner.predict(planner.load(asked))


PS = {"num_parameter_servers": 1}
MR = {"num_parameter_servers": 1, "num_replicas": 4, "num_workers_per_replica": 2}


def drawn(rate: str) -> dict[str, Any]:
    nodes = [{"name": "w", "count": 2, "device": "v100"}, {"name": "s", "count": 2, "device": "v100"}]
    switches = [{"name": "x", "type": "switch"}, {"name": "y", "type": "switch"}]
    links = [
        {"ends": ["w", "x"], "bandwidth": "10 Gbit/s"},
        {"ends": ["s", "y"], "bandwidth": "10 Gbit/s"},
        {"ends": ["x", "y"], "bandwidth": rate},
    ]
    return {"nodes": nodes + switches, "links": links}


@pytest.mark.parametrize(("family", "block"), [("parameter_server", PS), ("model_replicas", MR)])
def test_a_link_that_machines_share_is_refused_where_it_is_not_modelled(family: str, block: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="does not model the link x - y"):
        predicted(family, block, cluster=drawn("100 Mbit/s"))
    if family == "parameter_server":
        assert predicted(family, block, cluster=drawn("40 Gbit/s")).iteration_time_s > 0


def test_a_global_batch_is_the_epochs_divisor_in_every_family() -> None:
    dnn = {"zoo": "alexnet", "global_batch": 100, "dataset_samples": 1000}
    served = predicted("parameter_server", PS, dnn=dnn)
    reduced = planner.predict(
        planner.load(
            {
                "dnn": dnn,
                "cluster": {"machines": [{"count": 8, "device": "v100-sxm2-16g", "network": "10 Gbit/s"}]},
                "configuration": {"all_reduce": {"num_devices": 8}},
            }
        )
    )
    for prediction in (served, reduced):
        assert prediction.epoch_time_s == pytest.approx(prediction.iteration_time_s * 10)
        assert prediction.details["batch_per_device"] == 13


def test_shares_must_add_up_to_the_batch_that_is_asked_for() -> None:
    dnn = {"zoo": "alexnet", "global_batch": 128}
    with pytest.raises(SpecError, match="a batch of 8; dnn asks for 128"):
        predicted("parameter_server", {**PS, "batch_shares": {"w": 1}}, dnn=dnn)
    assert predicted("parameter_server", {**PS, "batch_shares": {"w": 16}}, dnn=dnn).iteration_time_s > 0
    most = {"zoo": "alexnet", "max_global_batch": 100}
    assert predicted("parameter_server", PS, dnn=most).details["global_batch_size"] == 96


def test_a_framework_without_overlap_pushes_after_the_backward_pass() -> None:
    overlapped, naive = (
        predicted("parameter_server", PS, calibration=fitted).breakdown_s["exposed_push"]
        for fitted in ({}, {"strategy": "naive"})
    )
    assert naive > overlapped


def test_a_shared_store_is_one_store_for_all_groups() -> None:
    store = {"bandwidth": "1 MB/s", "shared": True}
    machine = {"device": "v100-sxm2-16g", "network": "10 Gbit/s", "storage": store}
    whole = [{**machine, "name": "a", "count": 4}]
    halves = [{**machine, "name": name, "count": 2} for name in "ab"]
    server = {**machine, "name": "s", "count": 1}
    times = [
        predicted("parameter_server", {**PS, "servers": "s"}, cluster={"machines": [*groups, server]}).iteration_time_s
        for groups in (whole, halves)
    ]
    assert times[0] == pytest.approx(times[1])


def test_memory_is_that_of_the_fullest_device() -> None:
    machine = {"network": "10 Gbit/s", "count": 1}
    machines = [
        {**machine, "name": "large", "device": "v100-sxm2-16g"},
        {**machine, "name": "small", "device": "quadro-rtx-4000"},
        {**machine, "name": "s", "device": "xeon-e5-2660"},
    ]
    block = {**PS, "servers": "s", "batch_shares": {"large": 100, "small": 1}}
    dnn = {"zoo": "vgg16", "global_batch": 101}
    memory = predicted("parameter_server", block, dnn=dnn, cluster={"machines": machines}).memory_bytes
    assert memory["limit"] == 16 * 2**30
    assert memory["total"] < memory["limit"]


def test_a_thousand_equal_workers_are_one_row() -> None:
    machine = {"name": "w", "count": 100_000, "device": "v100-sxm2-16g", "network": "10 Gbit/s", "latency": "0 s"}
    many = predicted("parameter_server", PS, cluster={"machines": [machine]})
    assert many.details["num_workers"] == 99_999


def test_a_printed_form_is_refused_where_there_is_none() -> None:
    with pytest.raises(SpecError, match="asked in their cases"):
        predicted("parameter_server", PS, variant="printed")


def test_replicas_share_a_global_batch_and_read_after_their_part() -> None:
    dnn = {"zoo": "adam-mnist", "global_batch": 280}
    assert predicted("model_replicas", MR, dnn=dnn).details["batch_per_device"] == 70
    with pytest.raises(SpecError, match="leaves some of 4 replicas without one"):
        predicted("model_replicas", MR, dnn={"zoo": "adam-mnist", "global_batch": 3})


def test_replicas_wait_for_input_send_what_the_type_weighs_and_refuse_what_they_cannot_model() -> None:
    machine = {"name": "w", "count": 9, "device": "v100-sxm2-16g", "network": "10 Gbit/s", "latency": "0 s"}
    slow = {"machines": [{**machine, "storage": {"bandwidth": "1 kB/s"}}]}
    assert predicted("model_replicas", MR, cluster=slow).breakdown_s["input_stall"] > 0
    single, half = (
        predicted("model_replicas", MR, dnn={"zoo": "adam-mnist", "batch_per_device": 70, "dtype": dtype}).breakdown_s
        for dtype in ("fp32", "fp16")
    )
    assert half["read"] == pytest.approx(single["read"] / 2)
    with pytest.raises(SpecError, match="one device a machine; these have 8"):
        predicted("model_replicas", MR, cluster={"machines": [{**machine, "devices": 8}]})
    with pytest.raises(SpecError, match="C1: 1 servers"):
        predicted("model_replicas", {**MR, "num_workers_per_replica": 10**9})
    layers = [{"partitions": 2, "replicas": 2, "workers": [[0]]}, *[{}] * 6]
    with pytest.raises(SpecError, match="are not what workers list"):
        predicted("model_replicas", {**MR, "layers": layers})


def test_what_this_machine_measured_is_a_calibration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["calibrate", "--measure", "--json"]) == 0
    (tmp_path / "cal.json").write_text(capsys.readouterr().out)
    block = {**MR, "layers": [{"threads": 1}] * 7}
    asked = {
        "dnn": {"zoo": "adam-mnist", "batch_per_device": 70},
        "cluster": {"preset": "adam-20"},
        "calibration": "cal.json",
        "configuration": {"model_replicas": block},
    }
    (tmp_path / "spec.yaml").write_text(json.dumps(asked))
    measured = planner.predict(planner.load(tmp_path / "spec.yaml"))
    assumed = planner.predict(planner.load({**asked, "calibration": {}}))
    assert measured.iteration_time_s > 0
    assert measured.breakdown_s["forward"] != pytest.approx(assumed.breakdown_s["forward"])


def test_a_trace_never_overwrites_its_question(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    text = "dnn: {zoo: vgg16}\ncluster: {preset: osf-testbed}\n"
    file.write_text(text)
    assert run(["plan", str(file), "--trace", str(file)]) == 2
    assert "this is the question itself" in capsys.readouterr().err
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("machine", "dnn"),
    [({"count": 1, "devices": 1}, {}), ({"count": 64, "devices": 8}, {}), ({"network": "1 Gbit/s"}, {}), ({"inside": "nvlink-2"}, {}), ({}, {"dtype": "fp16"})],
)  # fmt: skip
def test_the_known_error_is_not_borrowed_beyond_what_was_measured(machine: dict[str, Any], dnn: dict[str, Any]) -> None:
    base = {"count": 4, "devices": 4, "device": "v100-sxm2-16g", "inside": "pcie-3-x16", "network": "10 Gbit/s"}
    asked = {
        "dnn": {"zoo": "resnet50", "batch_per_device": 64},
        "cluster": {"machines": [base]},
        "calibration": {"utilisation": 0.5},
        "families": ["all_reduce"],  # the one that was measured on such machines
    }
    assert planner.plan(planner.load(asked)).prediction.relative_error is not None
    other = {**asked, "dnn": {**asked["dnn"], **dnn}, "cluster": {"machines": [{**base, **machine}]}}  # type: ignore[dict-item]
    assert planner.plan(planner.load(other)).prediction.relative_error is None


def test_a_queue_at_the_switch_delays_both_directions_and_refuses_saturation() -> None:
    as_sold = {"bandwidth_efficiency": 1}
    free = predicted("parameter_server", PS, calibration=as_sold)
    queue = {"switch": "20 Gbit/s", "packet": "1500 B"}
    queued = predicted("parameter_server", PS, calibration={**as_sold, "queue": queue})
    half_load_s = 1500 / 1.25e9  # a packet's own time
    assert queued.iteration_time_s - free.iteration_time_s == pytest.approx(2 * half_load_s)
    with pytest.raises(SpecError, match="saturated"):
        predicted("parameter_server", PS, calibration={**as_sold, "queue": {"switch": "10 Gbit/s"}})


def test_compression_shrinks_pushes_and_takes_its_own_time() -> None:
    whole = predicted("parameter_server", PS)
    block = {**PS, "compression": {"removed": 0.75, "time": "1 ms"}}
    less = predicted("parameter_server", block)
    assert less.breakdown_s["compression"] == pytest.approx(16e-3)
    assert less.breakdown_s["pull"] == whole.breakdown_s["pull"]
    assert less.communication_s["push"] == pytest.approx(whole.communication_s["push"] / 4)
    with pytest.raises(SpecError, match="removed"):
        predicted("parameter_server", {**PS, "compression": {"removed": 1}})
