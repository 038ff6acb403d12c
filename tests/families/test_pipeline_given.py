"""A given configuration of a pipeline: what is refused, and what is taken where a key is missing."""

from typing import Any

import pytest
from given_pipelines import DNN, MACHINE, MIXED, TWO, loaded, predicted
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import SpecError
from planner.families.pipeline.family import default_num_microbatches


@pytest.mark.parametrize(
    ("stages", "block", "words"),
    [
        ([{"first": "a", "last": "z"}], {}, "stages.0.last: .* has no layer 'z'"),
        ([{"first": "b", "last": "f"}], {}, "stages.0.first: the layer that must come next is 'a'"),
        ([{"first": "a", "last": "b"}, {"first": "d", "last": "f"}], {}, "stages.1.first: the layer that must come next is 'c'"),
        ([{"first": "a", "last": "c"}, {"first": "d", "last": "b"}], {}, "stages.1.last: it stands before 'd'"),
        ([{"first": "a", "last": "c"}], {}, "must end with 'f'; 3 layers are in no stage"),
        ([{"first": "a", "last": "f"}, {"first": "a", "last": "b"}], {}, "no layer is left for it"),
        ([{"first": "a", "last": "f", "machines": "q"}], {}, "no machines 'q'; name one of w"),
        ([{"first": "a", "last": "f", "replicas": 9}], {}, "the stages take 9 devices; 'w' has 8"),
        (TWO, {"num_microbatches": 17}, "in 17 micro-batches leaves some of 2 replicas without a sample. Use 16"),
        (TWO, {"global_batch_size": 64}, "dnn asks for a batch of 32"),
        (TWO, {"chunks_per_device": 2}, "1f1b has 2 chunks a device; interleaved needs 2 or more"),
        (TWO, {"schedule": "interleaved"}, "interleaved has 1 chunks a device"),
        (TWO, {"schedule": "interleaved", "chunks_per_device": 3}, "2 stages are no multiple of 3 chunks"),
        (
            [TWO[0], {"first": "d", "last": "d"}, {"first": "e", "last": "e", "replicas": 2}, {"first": "f", "last": "f", "replicas": 2}],
            {"schedule": "interleaved", "chunks_per_device": 2},
            "stage 3 runs on the devices of stage 1: 1 of 'w'",
        ),
        (
            [{"first": "a", "last": "a"}, {"first": "b", "last": "c"}, {"first": "d", "last": "d"}, {"first": "e", "last": "f"}],
            {"schedule": "interleaved", "chunks_per_device": 2, "num_microbatches": 3},
            "needs a multiple of its 2 stages",
        ),
    ],
)  # fmt: skip
def test_a_block_that_means_no_pipeline_is_refused(
    stages: list[dict[str, Any]], block: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        loaded(stages, block=block)


def test_machines_must_be_named_where_there_are_several_groups() -> None:
    with pytest.raises(SpecError, match="machines are missing; name one of w, x"):
        loaded(cluster=MIXED, dnn={**DNN, "profile_device": "v100-sxm2-16g"})
    pinned = loaded(cluster=MIXED, dnn={**DNN, "profile_device": "v100-sxm2-16g"}, fix={"device": "p100-sxm2"})[1]
    assert [stage.machines for stage in pinned.stages] == ["x", "x"]


def test_a_narrow_link_between_switches_and_a_printed_form_are_refused() -> None:
    nodes = [{**{key: MACHINE[key] for key in ("device", "count", "devices")}, "name": name} for name in "ws"]
    switches = [{"name": name, "type": "switch"} for name in "xy"]
    links = [
        {"ends": ends, "bandwidth": rate}
        for ends, rate in ((["w", "x"], "10 Gbit/s"), (["s", "y"], "10 Gbit/s"), (["x", "y"], "1 Gbit/s"))
    ]
    with pytest.raises(SpecError, match="pipeline does not model the link x - y"):
        loaded([{"first": "a", "last": "f", "machines": "w"}], cluster={"nodes": nodes + switches, "links": links})
    with pytest.raises(SpecError, match="no printed form"):
        loaded(variant="printed")


@given(st.integers(1, 300), st.integers(1, 8), st.integers(1, 8), st.sampled_from(["1f1b", "interleaved"]))
def test_the_default_number_of_micro_batches_divides_the_batch_and_feeds_every_replica(
    batch: int, stages: int, replicas: int, schedule: str
) -> None:
    number = default_num_microbatches(batch, num_stages=stages, most_replicas=replicas, schedule=schedule)
    step = stages if schedule == "interleaved" else 1
    sensible = [one for one in range(step, 4 * stages + 1, step) if not batch % one and batch // one >= replicas]
    assert number == (1 if stages == 1 else max(sensible, default=step))


def test_the_largest_batch_is_taken_where_it_may_vary() -> None:
    dnn = {key: value for key, value in DNN.items() if key != "global_batch"}
    assert predicted(dnn={**dnn, "max_global_batch": 48}).details["global_batch_size"] == 48
    with pytest.raises(SpecError, match="dnn asks for a batch of 48"):
        predicted(dnn={**dnn, "max_global_batch": 48}, block={"global_batch_size": 49})
