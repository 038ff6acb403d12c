"""Buckets as frameworks close them: against a reference a tensor at a time, and against buckets that DDP formed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import affine_costs, log_linear_costs

import planner
from planner.calibration.run_files import read_run
from planner.cost import Affine, TransferCost, Wait
from planner.errors import SpecError
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.all_reduce.family import configuration_of
from planner.families.all_reduce.fusion import (
    DDP_CAP_BYTES,
    DDP_FIRST_BYTES,
    MIB,
    Exchange,
    _least_cap_bytes,
    best_cap,
    best_size,
    ddp_buckets,
    horovod_buckets,
    round_mib,
    ticks_of,
)
from planner.models.communication import cheapest_of


def buckets_one_by_one(sizes: Sequence[int], limits: Sequence[int]) -> tuple[int, ...]:
    """compute_bucket_assignment_by_size of PyTorch, a tensor at a time."""
    ends, held, left = [], 0, list(limits)
    for index, size in enumerate(sizes):
        held += size
        if held >= left[0]:
            ends.append(index)
            held = 0
            left = left[1:] or left
    return (*ends, len(sizes) - 1) if not ends or ends[-1] != len(sizes) - 1 else tuple(ends)


def groups_one_by_one(sizes: list[int], ticks: list[int], threshold: int) -> tuple[int, ...]:
    """What Horovod fuses: a response takes the next one of its tick as long as both fit."""
    ends: list[int] = []
    for index in range(len(sizes)):
        start = ends[-1] + 1 if ends else 0
        held = sum(sizes[start : index + 1])
        is_last = index == len(sizes) - 1
        if is_last or ticks[index + 1] != ticks[index] or held + sizes[index + 1] > threshold:
            ends.append(index)
    return tuple(ends)


sizes_of_tensors = st.lists(st.integers(1, 50), min_size=1, max_size=12)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.lists(st.integers(1, 120), min_size=1, max_size=4))
def test_buckets_close_as_soon_as_they_hold_their_limit(sizes: list[int], limits: list[int]) -> None:
    assert ddp_buckets(np.array(sizes, dtype=float), limits).ends == buckets_one_by_one(sizes, limits)


@given(sizes_of_tensors, st.floats(1, 120))
def test_fractions_of_a_byte_are_cut_off_as_pytorch_does(sizes: list[int], limit: float) -> None:
    assert ddp_buckets(np.array(sizes, dtype=float), [limit]).ends == buckets_one_by_one(sizes, [int(limit)])


@given(sizes_of_tensors, st.integers(1, 700))
def test_every_size_between_the_two_that_are_named_forms_the_same_buckets(sizes: list[int], limit: int) -> None:
    found = ddp_buckets(np.array(sizes, dtype=float), [limit])
    assert found.low_bytes < limit <= found.high_bytes
    for other in range(1, 700):
        if found.low_bytes < other <= found.high_bytes:
            assert buckets_one_by_one(sizes, [other]) == found.ends


@given(st.data())
def test_the_sizes_of_any_groups_as_limits_form_just_these_groups(data: st.DataObject) -> None:
    sizes = data.draw(sizes_of_tensors)
    cuts = data.draw(st.sets(st.integers(0, len(sizes) - 1)))
    ends = tuple(sorted(cuts | {len(sizes) - 1}))
    starts = (0, *(end + 1 for end in ends[:-1]))
    limits = [sum(sizes[start : end + 1]) for start, end in zip(starts, ends, strict=True)]
    assert ddp_buckets(np.array(sizes, dtype=float), limits).ends == ends


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3)), min_size=1, max_size=10), st.integers(1, 100))
def test_gradients_of_one_cycle_are_fused_up_to_the_threshold(rows: list[tuple[int, int]], threshold: int) -> None:
    sizes, ticks = [size for size, _ in rows], sorted(tick for _, tick in rows)
    found = horovod_buckets(np.array(sizes, dtype=float), np.array(ticks, dtype=float), threshold)
    assert found.ends == groups_one_by_one(sizes, ticks, threshold)
    for other in range(1, 400):
        if found.low_bytes < other <= found.high_bytes:
            assert groups_one_by_one(sizes, ticks, other) == found.ends


def test_a_tensor_is_taken_at_the_tick_after_it_is_ready() -> None:
    assert ticks_of(np.array([0.0, 0.4, 1.0, 1.2]), 1.0).tolist() == [0, 1, 1, 2]
    assert ticks_of(np.array([0.0, 0.4, 1.0, 1.2]), 1.0, 0.5).tolist() == [0, 0, 1, 1]


@given(st.data())
def test_no_cap_is_better_than_the_best_whatever_a_grouping_costs(data: st.DataObject) -> None:
    sizes = data.draw(sizes_of_tensors)
    array, costs = np.array(sizes, dtype=float), dict[tuple[int, ...], float]()
    for cap in range(1, sum(sizes) + 2):
        ends = buckets_one_by_one(sizes, [cap])
        costs.setdefault(ends, data.draw(st.floats(0, 1)))
    asked: list[tuple[int, ...]] = []

    def judge(cap: float) -> tuple[float, Any]:
        found = ddp_buckets(array, [cap])
        asked.append(found.ends)
        return costs[found.ends], found

    best_s, found = best_size(array, judge)
    assert best_s == min(costs.values()) == costs[found.ends]
    assert set(asked) == set(costs)
    assert len(asked) == len(set(asked))  # each grouping is tried once


@st.composite
def exchanges(draw: st.DrawFn, costs: st.SearchStrategy[TransferCost] = affine_costs) -> Exchange:
    """Gradients, some of which have no bytes, under the cheapest of some costs."""
    rows = draw(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 30)), min_size=1, max_size=12))
    sizes = np.array([size for size, _ in rows], dtype=float)
    return Exchange(
        ready_s=np.array(sorted(ready for _, ready in rows)),
        size_bytes=sizes / 2,  # compressed
        whole_bytes=sizes,
        transfer=cheapest_of(draw(st.lists(costs, min_size=1, max_size=3))),
        wait=draw(st.sampled_from(Wait)),
        timeout_s=3.0,
    )


def ends_by_cap(exchange: Exchange) -> dict[int, float]:
    """When the last transfer ends, by the cap of whole bytes."""
    sizes = [int(size) for size in exchange.whole_bytes]
    return {cap: exchange.finish_s(buckets_one_by_one(sizes, [cap])) for cap in range(1, sum(sizes) + 2)}


@given(exchanges())
def test_the_best_cap_is_the_best_of_all_caps_of_whole_bytes(exchange: Exchange) -> None:
    assert exchange.finish_s(best_cap(exchange).ends) == pytest.approx(min(ends_by_cap(exchange).values()))


@settings(max_examples=200)
@given(exchanges(st.one_of(affine_costs, log_linear_costs)))
def test_no_cap_is_passed_over_that_ends_in_time(exchange: Exchange) -> None:
    for cap, end_s in ends_by_cap(exchange).items():
        assert _least_cap_bytes(exchange, end_s * (1 + 1e-9)) <= cap


def test_caps_that_make_too_many_transfers_are_passed_over() -> None:
    parts = Affine(startup_s=1.0, per_byte_s=0.1), Affine(startup_s=2.0, per_byte_s=0.0)
    sizes = np.full(100, 3.0)
    exchange = Exchange(
        ready_s=np.linspace(0, 5, 100),
        size_bytes=sizes,
        whole_bytes=sizes,
        transfer=cheapest_of(parts),
        wait=Wait.NONE,
        timeout_s=0,
    )
    assert _least_cap_bytes(exchange, 9.0) == pytest.approx(300 / 10 - 3)


@given(sizes_of_tensors, st.integers(1, 700))
def test_a_size_in_mib_forms_the_same_buckets(sizes: list[int], limit: int) -> None:
    array = np.array(sizes, dtype=float) * 40_000
    found = ddp_buckets(array, [limit * 40_000])
    assert ddp_buckets(array, [round_mib(found, float(array.sum())) * MIB]).ends == found.ends


# -- what DDP really formed --------------------------------------------------------------------------------------------


@pytest.mark.measured
def test_the_rule_forms_exactly_the_buckets_that_ddp_formed_in_every_open_run(data_folder: Path) -> None:
    paths = sorted((data_folder / "measurements").glob("open__ar-*.json"))
    num_buckets = 0
    for path in paths:
        cap_mib = json.loads(path.read_text(encoding="utf-8"))["inputs"]["allreduce"]["bucket_cap_mb"]
        run = read_run(path)
        assert run.all_reduce is not None
        size_bytes = {tensor.name: tensor.size_bytes for layer in run.workers[0].layers for tensor in layer.tensors}
        formed = [bucket.tensors for bucket in run.all_reduce.buckets]
        order = [name for bucket in formed for name in bucket]  # in which gradients got ready in the first iteration
        limits = [DDP_FIRST_BYTES, DDP_CAP_BYTES] if cap_mib is None else [cap_mib * MIB]
        ends = ddp_buckets(np.array([size_bytes[name] for name in order], dtype=float), limits).ends
        starts = (0, *(end + 1 for end in ends[:-1]))
        buckets = [order[start : end + 1] for start, end in zip(starts, ends, strict=True)]
        assert buckets == formed, path.name
        num_buckets += len(formed)
    assert (len(paths), num_buckets) == (22, 256)


# -- in a specification ------------------------------------------------------------------------------------------------

LAYERS = [("conv", 250_000), ("mid", 1_000_000), ("wide", 6_000_000), ("head", 100_000)]  # parameters; forward order


def question(fusion: Any, **more: Any) -> dict[str, Any]:
    """A network of four layers, each a weight and a bias of a hundredth of it, on two machines of two devices."""
    layers: list[dict[str, Any]] = [{"name": "input", "kind": "input", "shape": [3, 8, 8]}]
    for name, number in LAYERS:
        tensors = [
            {"name": f"{name}.weight", "elements": number, "role": "weight"},
            {"name": f"{name}.bias", "elements": number // 100, "role": "bias"},
        ]
        layers.append({"name": name, "kind": "dense", "multiply_adds": 1e8, "tensors": tensors})
    device = {"name": "box", "fp32": "1 TFLOP/s", "memory": "8 GiB"}
    inside = {"bandwidth": "1 GB/s", "latency": "20 us"}
    machine = {"count": 2, "device": device, "devices": 2, "inside": inside, "network": "1 Gbit/s"}
    block = {"num_devices": 4, "fusion_groups": fusion}
    return {
        "dnn": {"name": "net", "layers": layers, "global_batch": 16},
        "cluster": {"machines": [machine]},
        "families": ["all_reduce"],
        "objective": "iteration_time",
        "configuration": {"all_reduce": block},
        **more,
    }


def configured(fusion: Any, **more: Any) -> AllReduceConfiguration:
    problem = planner.load(question(fusion, **more))
    assert problem.configuration is not None
    return configuration_of(problem, problem.configuration[1])


def groups_of(fusion: Any, **more: Any) -> list[tuple[str, ...]]:
    return [group.tensors for group in configured(fusion, **more).fusion_groups]


def seconds(fusion: Any, **more: Any) -> float:
    return planner.predict(planner.load(question(fusion, **more))).iteration_time_s


HEAD = ("head.bias", "head.weight")


@pytest.mark.parametrize(
    ("fusion", "expected"),
    [
        # The first bucket takes the tensor that passes 1 MiB, the next closes with what passes 25 MiB.
        ("ddp", [(*HEAD, "wide.bias", "wide.weight"), ("mid.bias", "mid.weight", "conv.bias", "conv.weight")]),
        ({"bucket_cap": "400 kB"}, [HEAD, ("wide.bias", "wide.weight"), ("mid.bias", "mid.weight"), ("conv.bias", "conv.weight")]),
        ({"bucket_cap": "25 MiB", "first": "4 kB"}, [("head.bias",), ("head.weight", "wide.bias", "wide.weight", "mid.bias", "mid.weight"), ("conv.bias", "conv.weight")]),
        ({"bucket_cap": "1 GiB"}, [(*HEAD, "wide.bias", "wide.weight", "mid.bias", "mid.weight", "conv.bias", "conv.weight")]),
        # All layers get ready within different cycles of 1 ns; in one cycle of an hour a buffer closes before 2 MB.
        ({"fusion_threshold": "1 GiB", "cycle": "1 ns"}, [HEAD, ("wide.bias", "wide.weight"), ("mid.bias", "mid.weight"), ("conv.bias", "conv.weight")]),
        ({"fusion_threshold": "2 MB", "cycle": "1 h"}, [(*HEAD, "wide.bias"), ("wide.weight",), ("mid.bias",), ("mid.weight",), ("conv.bias", "conv.weight")]),
        # The rule of papers closes before the size, and cuts where the question's own groups end: at layers.
        ({"buffer": "1 MB"}, [("head",), ("wide",), ("mid",), ("conv",)]),
    ],
)  # fmt: skip
def test_a_specification_names_a_frameworks_buckets(fusion: Any, expected: list[tuple[str, ...]]) -> None:
    assert groups_of(fusion) == expected
    if expected[0][0] != "head":  # a question whose own groups end at tensors has the same
        assert groups_of(fusion, calibration={"fusion_unit": "tensor"}) == expected


def test_what_is_predicted_of_buckets_is_read_back() -> None:
    listed = configured("ddp").to_document()["fusion_groups"]
    assert configured(listed) == configured("ddp")
    assert seconds(listed) == seconds("ddp")


def test_the_best_cap_is_no_slower_than_any_cap_nor_faster_than_all_cuts() -> None:
    best_s = seconds("best_bucket_cap")
    for cap_bytes in (1, 4_000, 40_000, 400_000, 2_000_000, 30_000_000, 10**9):
        assert best_s <= seconds({"bucket_cap": f"{cap_bytes} B"}) * (1 + 1e-12)
    assert seconds("optimal", calibration={"fusion_unit": "tensor"}) <= best_s * (1 + 1e-12)
    assert seconds("ddp") == seconds({"bucket_cap": "25 MiB", "first": "1 MiB"})
    assert seconds("horovod") == seconds({"fusion_threshold": "128 MiB", "cycle": "1 ms"})
    assert seconds({"fusion_threshold": "128 MiB"}) == seconds("horovod")


def test_a_plan_lists_the_frameworks_buckets_by_the_exact_rules() -> None:
    asked = question("ddp")
    del asked["configuration"]
    plan = planner.plan(planner.load({**asked, "fix": {"num_devices": 4}}))
    found = {one.name: one for one in plan.alternatives}
    for name, fusion in (
        ("buckets of 25 MiB (PyTorch DDP's default)", "ddp"),
        ("buffer of 128 MiB (Horovod's default)", "horovod"),
    ):
        assert found[name].configuration == configured(fusion)
        assert found[name].objective == pytest.approx(seconds(fusion))
    (best,) = (one for name, one in found.items() if name.startswith("best constant bucket cap (DDP), "))
    cap = best.name.removeprefix("best constant bucket cap (DDP), ")
    assert best.configuration == configured({"bucket_cap": cap})
    assert best.objective <= found["buckets of 25 MiB (PyTorch DDP's default)"].objective


@pytest.mark.parametrize(
    ("fusion", "words"),
    [
        ({"bucket_cap": "0 B"}, "must be greater than 0"),
        ({"bucket_cap": "-1 MiB"}, "bucket_cap"),
        ({"bucket_cap": 25}, "has no unit"),
        ({"bucket_cap": "25 MiB", "first": "0 B"}, "must be greater than 0"),
        ({"fusion_threshold": "0 B"}, "must be greater than 0"),
        ({"fusion_threshold": "64 MiB", "cycle": "0 s"}, "must be greater than 0"),
        ({"bucket_cap": "25 MiB", "buffer": "25 MiB"}, "give one size: buffer"),
        ({}, "give one size: buffer"),
        ({"buffer": "25 MiB", "first": "1 MiB"}, "give bucket_cap, too"),
        ({"bucket_cap": "25 MiB", "cycle": "1 ms"}, "give fusion_threshold, too"),
        ("dpd", "ddp"),
    ],
)
def test_a_size_that_makes_no_sense_is_refused_with_what_to_write(fusion: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        planner.load(question(fusion))
