"""One law for every number of devices: found again from what it made, by the closed forms of the family all_reduce."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.calibration.fits import Links, fit_cluster_law, fit_free_law, layout_of
from planner.calibration.tables import Group
from planner.cost import Floats
from planner.families.all_reduce.cost import AllReduceCost
from planner.models.communication import double_binary_tree_all_reduces, ring_all_reduces
from planner.problem import Problem

SIZES: Floats = np.exp2(np.arange(8.0, 27.0))


def group(number: int, seconds: Any, machines: int | None = None) -> Group:
    return Group(
        collective="all_reduce", num_devices=number, size_bytes=SIZES, time_s=np.asarray(seconds), num_machines=machines
    )


def question(calibration: dict[str, Any] | None = None, *, machines: int = 4, devices: int = 4) -> Problem:
    return planner.load(
        {
            "dnn": {"zoo": "resnet50", "batch_per_device": 32},
            "cluster": {
                "machines": [
                    {
                        "count": machines,
                        "device": "v100-sxm2-16g",
                        "devices": devices,
                        "inside": "pcie-3-x16",
                        "network": "10 Gbit/s",
                        "latency": "10 us",
                    }
                ]
            },
            "calibration": {"aggregation": False, **(calibration or {})},
        }
    )


@pytest.mark.parametrize("shape", ["ring", "tree"])
def test_overhead_latency_and_bandwidth_of_either_shape_are_found_again(shape: str) -> None:
    forms = {"ring": ring_all_reduces, "tree": double_binary_tree_all_reduces}[shape]
    costs = forms(num_devices=[2, 3, 8, 16], bandwidth_bytes_per_s=1.1e9, latency_s=7e-6, overhead_s=4e-5)
    law = fit_free_law([group(number, costs.at(i)(SIZES)) for i, number in enumerate((2, 3, 8, 16))])
    assert law is not None
    assert law.name == shape
    assert law.parameters == pytest.approx(
        {"overhead_s": 4e-5, "latency_s": 7e-6, "bandwidth_bytes_per_s": 1.1e9}, rel=1e-2
    )
    assert law.score is not None
    assert law.score.worst < 0.02
    other = forms(num_devices=[5], bandwidth_bytes_per_s=1.1e9, latency_s=7e-6, overhead_s=4e-5).at(0)
    np.testing.assert_allclose(law.cost_of(5)(SIZES), other(SIZES), rtol=1e-2)


def test_one_number_of_devices_makes_no_law_and_two_make_one_of_unknown_error() -> None:
    costs = ring_all_reduces(num_devices=[2, 4], bandwidth_bytes_per_s=1e9, latency_s=1e-5)
    groups = [group(number, costs.at(i)(SIZES)) for i, number in enumerate((2, 4))]
    assert fit_free_law(groups[:1]) is None
    law = fit_free_law(groups)
    assert law is not None
    assert law.score is None
    assert "told apart by their difference alone" in law.notes[0]


def test_the_error_of_a_number_of_devices_left_out_is_that_of_a_law_without_it() -> None:
    costs = ring_all_reduces(num_devices=[2, 4, 8], bandwidth_bytes_per_s=1e9, latency_s=1e-5)
    groups = [group(number, costs.at(i)(SIZES) * (1.5 if number == 8 else 1.0)) for i, number in enumerate((2, 4, 8))]
    law = fit_free_law(groups)
    assert law is not None
    without = fit_free_law(groups[:2])
    assert without is not None
    if law.name == without.name == "ring":
        own = np.abs(without.cost_of(8)(SIZES) / groups[2].time_s - 1)
        assert law.by_group[8].mean == pytest.approx(own.mean(), rel=1e-2)
    assert law.by_group[8].mean > 0.2


@settings(max_examples=12)
@given(
    layout=st.sampled_from([(1, 2), (1, 4), (2, 1), (2, 4), (4, 4), (3, 2)]),
    share=st.floats(0.2, 1.0),
    inside=st.floats(0.2, 1.0),
    overhead_us=st.floats(0, 500),
    adds_up=st.booleans(),
)
def test_the_costs_of_the_law_are_those_of_the_family(
    layout: tuple[int, int], share: float, inside: float, overhead_us: float, adds_up: bool
) -> None:
    problem = question(
        {
            "bandwidth_efficiency": share,
            "inside_efficiency": inside,
            "overhead": f"{overhead_us!r} us",
            "aggregation": adds_up,
        }
    )
    machines, devices = layout
    theirs = AllReduceCost.homogeneous(problem, (), devices).transfer_costs(machines, machines * devices)
    links = Links(
        cluster=problem.cluster,
        algorithms=problem.calibration.algorithms,
        reduce_bytes_per_s=15.7e12 * 4 if adds_up else float("inf"),
    )
    values = {"overhead_s": overhead_us * 1e-6, "bandwidth_efficiency": share, "inside_efficiency": inside}
    for ours, name in zip(links.costs(layout, values), problem.calibration.algorithms, strict=True):
        np.testing.assert_allclose(ours(SIZES), theirs[name](SIZES), rtol=1e-6)


def measured(problem: Problem, values: dict[str, float], layouts: list[tuple[int, int]]) -> list[Group]:
    links = Links(cluster=problem.cluster, algorithms=problem.calibration.algorithms)
    return [
        group(m * d, np.min([cost(SIZES) for cost in links.costs((m, d), values)], axis=0), machines=m)
        for m, d in layouts
    ]


def test_shares_and_overhead_of_a_cluster_are_found_again() -> None:
    problem = question()
    truth = {"overhead_s": 6e-5, "bandwidth_efficiency": 0.55, "inside_efficiency": 0.8}
    groups = measured(problem, truth, [(1, 2), (1, 4), (2, 4), (4, 4)])
    law = fit_cluster_law(groups, Links(cluster=problem.cluster, algorithms=problem.calibration.algorithms))
    assert law is not None
    assert law.parameters == pytest.approx(truth, rel=1e-2)
    assert law.score is not None
    assert law.score.worst < 0.05


def test_a_share_that_no_timing_depends_on_stays_at_one_and_is_named() -> None:
    problem = question()
    truth = {"overhead_s": 6e-5, "bandwidth_efficiency": 0.55, "inside_efficiency": 1.0}
    # The ring alone, whose slowest link is the network.
    links = Links(cluster=problem.cluster, algorithms=("ring",))
    groups = [
        group(8, links.costs((2, 4), truth)[0](SIZES), machines=2),
        group(16, links.costs((4, 4), truth)[0](SIZES)),
    ]
    law = fit_cluster_law(groups, links)
    assert law is not None
    assert "inside_efficiency" not in law.parameters
    assert "inside_efficiency stays at 1: no timing depends on it" in law.notes
    assert law.parameters["bandwidth_efficiency"] == pytest.approx(0.55, rel=1e-2)


def test_numbers_of_devices_that_fill_no_machines_are_left_out_and_named() -> None:
    problem = question()
    groups = measured(problem, {"overhead_s": 6e-5}, [(2, 4), (4, 4)])
    law = fit_cluster_law(
        [*groups, group(6, groups[0].time_s), group(64, groups[0].time_s)],
        Links(cluster=problem.cluster, algorithms=("ring",)),
    )
    assert law is not None
    assert any("6, 64 devices do not fill machines" in note for note in law.notes)
    assert fit_cluster_law([group(6, groups[0].time_s)], Links(cluster=problem.cluster, algorithms=("ring",))) is None


def test_so_many_devices_fill_machines_unless_told_otherwise() -> None:
    cluster = question().cluster
    assert layout_of(cluster, 3) == (1, 3)
    assert layout_of(cluster, 8) == (2, 4)
    assert layout_of(cluster, 4, 4) == (4, 1)
    assert layout_of(cluster, 6) is None
    assert layout_of(cluster, 20) is None
