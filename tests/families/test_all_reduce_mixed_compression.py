"""Compressed gradients on unlike machines."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from mixed_all_reduce import MIXED, every_bare_configuration, planned, small_problems

import planner
from planner.errors import InfeasibleError
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.all_reduce.fusion import exchange_of
from planner.problem import Problem


@settings(max_examples=8)
@given(small_problems(is_compressed=True))
def test_compression_never_hurts_and_beats_every_share_of_a_grid(problem: Problem) -> None:
    try:
        plain = planned(replace(problem, compression=None))
    except InfeasibleError:
        return
    found = planned(problem)
    assert found.objective <= plain.objective * (1 + 1e-9)
    assert found.bound <= found.objective
    if not found.prediction.breakdown_s["input_stall"]:  # where input binds, too, the bound may leave it out
        assert found.gap <= 1e-3
    grid = (0.25, 0.4, 0.6, 0.8, 1.0)
    option = problem.compression
    assert option is not None
    from planner.families.all_reduce.fusion import best_ends
    from planner.models.compression import Compression

    for cost, bare in list(every_bare_configuration(problem))[::7]:
        for kept in grid:
            squeezed = replace(bare, compression=Compression(removed=1 - kept, scale_s=option.scale_s))
            ends = best_ends(exchange_of(cost, squeezed))
            rows = {one.name: one for one in bare.groups}
            configuration = cost.configuration(
                [rows[name].num_machines for name in cost.names],
                [rows[name].batch_per_device for name in cost.names],
                bare.global_batch_size,
                ends=ends,
                compression=squeezed.compression,
            )
            assert cost.predict(configuration).value_of(problem.goal) >= found.bound * (1 - 1e-9)


def test_compression_on_unlike_devices_beats_every_share_of_a_grid() -> None:
    asked = {**MIXED, "dnn": {"zoo": "vgg16", "global_batch": 128}}
    plain = planned(planner.load(asked))
    found = planned(planner.load({**asked, "compression": {"time": "2 ms", "at_most": 0.9}}))
    configuration = found.configuration
    assert isinstance(configuration, AllReduceConfiguration)
    assert configuration.compression is not None
    assert found.objective < plain.objective
    assert found.gap <= 1e-3
    assert any("accuracy is not modelled" in line for line in found.warnings)
    again = planner.load({**found.problem, "configuration": {"all_reduce": configuration.to_document()}})
    assert planner.predict(again) == found.prediction
    block = {key: value for key, value in configuration.to_document().items() if key != "fusion_groups"}
    for removed in np.linspace(0, 0.9, 19).tolist():
        given_block = {**block, "compression": {"removed": removed, "time": "2 ms"}}
        other = planner.predict(planner.load({**asked, "configuration": {"all_reduce": given_block}}))
        assert other.value_of(found.goal) >= found.objective * (1 - 1e-3)


@pytest.mark.parametrize("time", ["0 s", "1 ms", "20 ms", "10 s"])
def test_compression_on_one_type_is_taken_only_where_it_pays(time: str) -> None:
    asked = {
        "dnn": {"zoo": "vgg16", "batch_per_device": 16},
        "families": ["all_reduce"],
        "cluster": {"machines": [{"count": 4, "device": "v100", "network": "5 Gbit/s", "latency": "20 us"}]},
        "calibration": {"utilisation": 0.4},
    }
    plain = planner.plan(planner.load(asked))
    found = planner.plan(planner.load({**asked, "compression": {"time": time, "at_most": 0.9}}))
    configuration = found.configuration
    assert isinstance(configuration, AllReduceConfiguration)
    assert found.objective <= plain.objective * (1 + 1e-9)
    assert (configuration.compression is not None) == (time != "10 s")
    assert found.gap <= 1e-5
    if configuration.compression is None:
        assert found.objective == pytest.approx(plain.objective)
        return
    assert any("accuracy is not modelled" in line for line in found.warnings)
    again = planner.load({**found.problem, "configuration": {"all_reduce": configuration.to_document()}})
    assert planner.predict(again) == found.prediction
    assert sum(found.prediction.breakdown_s.values()) == pytest.approx(found.prediction.iteration_time_s)
    block = {key: value for key, value in configuration.to_document().items() if key != "fusion_groups"}
    for removed in np.linspace(0, 0.9, 19).tolist():
        given_block = {**block, "compression": {"removed": removed, "time": time}}
        other = planner.predict(planner.load({**asked, "configuration": {"all_reduce": given_block}}))
        assert other.value_of(found.goal) >= found.bound * (1 - 1e-9)
