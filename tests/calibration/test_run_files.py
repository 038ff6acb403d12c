import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_files import run_document, write_run

from planner.calibration.run_files import RunFamily, is_run, read_run
from planner.errors import SpecError


def test_a_file_is_read_in_si_units(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, run_document(factors=(1.0, 2.0, 1.0))))
    assert run.family is RunFamily.ALL_REDUCE_EMULATED
    assert run.family.is_all_reduce and not run.family.is_real
    assert [worker.compute_factor for worker in run.workers] == [1.0, 2.0, 1.0]
    assert run.workers[1].backward_s == pytest.approx(0.4)
    assert run.workers[2].layers == run.workers[0].layers
    assert run.network.link_rate_bytes_per_s == pytest.approx(1e7)
    assert run.all_reduce is not None and run.all_reduce.is_bucket_view
    assert run.measured is not None and run.measured.median_s == pytest.approx(0.62)
    assert run.server is None


def test_a_file_without_results_is_enough(tmp_path: Path) -> None:
    assert read_run(write_run(tmp_path, run_document(median_s=None))).measured is None


def test_a_layer_without_tensors_may_lack_its_backward_seconds(tmp_path: Path) -> None:
    document = run_document()
    layers = document["inputs"]["standalone"][0]["profile"]["layers"]
    layers.append({"name": "head", "forward_time_s": 0.1, "backward_time_s": None, "tensors": []})
    assert read_run(write_run(tmp_path, document)).workers[0].layers[-1].backward_s == 0.0


def _changed(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    """Return what puts a value at a path of keys and indices; None removes it."""

    def change(document: dict[str, Any]) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        place: Any = document
        for part in parents:
            place = place[part]
        if value is None:
            del place[last]
        else:
            place[last] = value

    return change


CURVE = "inputs.communication_time_curves.allreduce.isolated"
BUCKETS = "inputs.allreduce.buckets_used"
ITERATION = {"median_s": 0.3, "p10_s": 0.3, "p90_s": 0.3, "mean_s": 0.3, "count": 8}
KEYS = [
    {"key": index, "tensor": name, "layer": name.split(".")[0], "size_bytes": size, "server": 0}
    for index, (name, size) in enumerate([("first.w", 4_000_000), ("last.w", 1_000_000), ("last.b", 40)])
]
SERVERS = {
    "servers": 1,
    "keys": KEYS,
    "overlap": "push",
    "assignment": "round_robin",
    "barrier_between_push_and_pull": False,
    "colocated": False,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_changed("schema_version", 2), "schema_version: it must be 1"),
        (_changed("family", "ring"), "family: it must be"),
        (_changed("inputs.network", None), "inputs.network: this key is missing"),
        (_changed("inputs.network.link_rate_bytes_per_s", 0), "link_rate_bytes_per_s: it must be more than 0"),
        (_changed("inputs.network.link_rate_bytes_per_s", "fast"), "link_rate_bytes_per_s"),
        (_changed(f"{CURVE}.0.time_median_s", -1), "isolated.0.time_median_s: it must be more than 0"),
        (_changed(f"{CURVE}.1.size_bytes", 10_000), "isolated: a size stands twice"),
        (_changed(CURVE, []), "isolated: there must be at least 2"),
        (
            _changed("inputs.communication_time_curves", {}),
            "allreduce: a run of the family allreduce_emulated needs it",
        ),
        (_changed("inputs.allreduce", None), "inputs.allreduce: a run of the family allreduce_emulated needs it"),
        (
            _changed("inputs.worker_compute_factors", [1.0, 3.0]),
            "no profile in inputs.standalone has the compute factor 3",
        ),
        (_changed("inputs.worker_compute_factors", [1.0]), "it has 1 factors for 2 workers"),
        (_changed(f"{BUCKETS}.0.tensors", ["last.w"]), "tensor 'last.b' is missing"),
        (_changed(f"{BUCKETS}.0.tensors", ["last.w", "last.b", "x"]), "tensor 'x' is not in the profile"),
        (_changed(f"{BUCKETS}.0.tensors", ["last.w", "last.b", "first.w"]), "a tensor stands in two buckets"),
        (
            _changed(f"{BUCKETS}.1.size_bytes", 4_000),
            "buckets_used.1.size_bytes: it is a bucket of 4000 bytes; its tensors have 4000000",
        ),
        (
            _changed(f"{CURVE}.2.time_median_s", 1e-3),
            "isolated.2.time_median_s: 10000000 bytes in 0.001 s is faster than links of 1e+07 bytes a second",
        ),
        (
            _changed("inputs.standalone.0.profile.layers.0.tensors.0.gradient_ready_offset_s", 200.0),
            "the gradient of 'first.w' is ready after 200 s of a backward pass that takes 0.2 s",
        ),
        (
            _changed("inputs.all_workers_computing_without_communication", [ITERATION]),
            "all_workers_computing_without_communication: it has 1 workers of 2",
        ),
        (
            _changed("inputs.ps", SERVERS | {"servers": 3, "colocated": True}),
            "inputs.ps.servers: 3 servers share the hosts of 2 workers",
        ),
        (
            _changed("inputs.ps", SERVERS | {"keys": [KEYS[0] | {"size_bytes": 5}, *KEYS[1:]]}),
            "inputs.ps.keys: the keys of 'first.w' hold 5 bytes; the profile has 4000000",
        ),
        (
            _changed("inputs.ps", SERVERS | {"keys": [KEYS[0] | {"server": 7}, *KEYS[1:]]}),
            "a key lies on a server beyond the 1 there are",
        ),
    ],
)
def test_what_is_wrong_is_told_with_field_and_mend(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    document = run_document()
    change(document)
    with pytest.raises(SpecError) as caught:
        read_run(write_run(tmp_path, document))
    assert message in str(caught.value)
    assert str(tmp_path / "run.json") in str(caught.value)
    assert all(fault.mend for fault in caught.value.faults)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("{", r"run.json:1:2: this is not valid JSON"),
        ("[1]", "a run is a mapping of keys"),
        ('{"schema_version": NaN}', "NaN is no figure"),
        ("[" * 100_000, "this is not valid JSON|nested too deep"),
    ],
)
def test_a_file_that_is_no_run_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    assert not is_run(path)
    with pytest.raises(SpecError, match=message):
        read_run(path)


def test_a_missing_and_a_binary_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        read_run(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\0\1")
    with pytest.raises(SpecError, match="binary"):
        read_run(tmp_path / "binary.json")


def test_other_json_is_no_run(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"family": "x"}))
    assert not is_run(path)
    assert is_run(write_run(tmp_path, run_document()))
