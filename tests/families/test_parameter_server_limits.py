"""Parameter servers under pins and limits: staleness, machines and devices, one machine, and a batch that may vary."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import MIXED, planned, question

import planner
from planner.cost import Passes
from planner.errors import InfeasibleError
from planner.families.parameter_server.bounds import Boxes, Space, lower_bounds, root, tightened
from planner.families.parameter_server.cost import ParameterServerCost
from planner.families.parameter_server.search import plan, row_configuration
from planner.problem import Problem
from planner.search import Search
from planner.solution import Status
from tests.referee import second_physics

# -- staleness --------------------------------------------------------------------------------------------------------


def pinned_to(kind: str, **constraints: Any) -> Problem:
    machines = [{"name": "w", "count": 2, "device": "v100-sxm2-16g", "network": "100 Gbit/s", "latency": "5 us"}]
    asked = {"cluster": {"machines": machines}, "fix": {"synchronisation": kind, "num_machines": 2}}
    return planner.load(question(**asked, constraints=constraints))


@pytest.mark.parametrize("kind", ["ssp", "asp", "local_sgd"])
def test_a_pin_is_the_permission_where_no_staleness_is_set_and_the_plan_passes_the_check(kind: str) -> None:
    problem = pinned_to(kind)
    found = planner.plan(problem)
    assert problem.limits.max_staleness is None
    assert found.configuration.to_document()["synchronisation"] == kind
    assert any("gradients lag" in line for line in found.explanation)
    assert any("constraints.max_staleness is not set: the pin" in line for line in found.explanation)
    assert second_physics.check(problem, found).is_ok
    asked = [one.configuration.to_document() for one in found.alternatives if one.configuration is not None]
    assert all(block["synchronisation"] == kind for block in asked)
    unpinned = replace(problem, fixed={})
    faults = {one.name for one in second_physics.check(unpinned, found).findings if not one.is_ok}
    assert "constraints.max_staleness" in faults


@pytest.mark.parametrize(("kind", "most"), [("ssp", 0), ("local_sgd", 0), ("asp", 0), ("asp", 1), ("asp", 8)])
def test_a_pin_beyond_the_staleness_that_is_set_is_refused_with_both_values(kind: str, most: int) -> None:
    with pytest.raises(InfeasibleError, match=rf"fix.synchronisation is {kind}.*constraints.max_staleness is {most}"):
        plan(pinned_to(kind, max_staleness=most), Search())


@pytest.mark.parametrize(("kind", "key"), [("ssp", "max_staleness"), ("local_sgd", "local_steps")])
@pytest.mark.parametrize("most", [1, 2])
def test_a_staleness_that_is_set_holds_for_pins_and_the_check_holds_to_it(kind: str, key: str, most: int) -> None:
    problem = pinned_to(kind, max_staleness=most)
    found = planner.plan(problem)
    assert found.configuration.to_document()[key] - (kind == "local_sgd") <= most
    assert second_physics.check(problem, found).is_ok
    for limits, is_ok in ((most - 1, False), (float("inf"), True)):
        other = replace(problem, limits=replace(problem.limits, max_staleness=limits))
        staleness = next(
            one for one in second_physics.check(other, found).findings if one.name == "constraints.max_staleness"
        )
        reached = found.configuration.to_document()[key] - (kind == "local_sgd")
        assert staleness.is_ok is (is_ok or reached <= limits)


def test_a_staleness_of_0_is_synchronous_also_where_nothing_is_pinned() -> None:
    found = planned(constraints={"max_staleness": 0})
    assert "synchronisation" not in found.configuration.to_document()
    assert found.objective == planned().objective
    assert second_physics.check(planner.load(question(constraints={"max_staleness": 0})), found).is_ok


# -- machines and devices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 3, 4, 7])
def test_a_pinned_number_of_machines_counts_those_that_work_or_serve_like_the_constraint(number: int) -> None:
    pinned, limited = planned(fix={"num_machines": number}), planned(constraints={"machines": {"exactly": number}})
    block = pinned.configuration.to_document()
    serving = 0 if block["co_located"] else block["num_parameter_servers"]
    assert sum(block["workers"].values()) + serving == number
    assert pinned.objective == limited.objective
    assert second_physics.check(planner.load(question(fix={"num_machines": number})), pinned).is_ok


@pytest.mark.parametrize("number", [1, 4])
def test_a_pinned_number_of_devices_counts_those_that_work(number: int) -> None:
    asked = {"fix": {"num_devices": number}, "calibration": {"utilisation": 0.5, "split_tensors": True}}
    found = planned(**asked)
    assert sum(found.configuration.to_document()["workers"].values()) == number
    assert second_physics.check(planner.load(question(**asked)), found).is_ok


@pytest.mark.parametrize("key", ["num_parameter_servers", "num_machines", "num_devices"])
def test_a_pin_of_millions_is_refused_before_anything_of_its_size_is_built(key: str) -> None:
    problem = planner.load(question(fix={key: 5_000_000_000}))
    assert len(Space(problem).loads_bytes) <= problem.cluster.num_machines
    with pytest.raises(InfeasibleError, match=f"fix.{key}: 5000000000 is more than the . .* Pin . or less"):
        plan(problem, Search())


def alone(**changes: Any) -> dict[str, Any]:
    """One machine with everything that an exchange over a network costs."""
    machine = {"name": "w", "device": "v100-sxm2-16g", "network": "1 Gbit/s", "latency": "1 ms", **changes}
    calibration = {"utilisation": 0.5, "overhead": "5 ms", "queue": {"switch": "100 Gbit/s"}}
    return {"cluster": {"machines": [machine]}, "calibration": calibration}


@pytest.mark.parametrize("kind", ["bsp", "asp"])
@pytest.mark.parametrize("count", [1, 2])
def test_one_device_that_serves_itself_pays_for_no_exchange(kind: str, count: int) -> None:
    asked = {**alone(count=count), "fix": {"num_machines": 1, "synchronisation": kind}}
    found = planned(**asked)
    seconds = found.prediction.breakdown_s
    exchange = ("exposed_push", "pull", "latency", "queueing", "overhead", "compression")
    assert sum(seconds.get(name, 0.0) for name in exchange) == pytest.approx(0, abs=1e-12)
    assert found.prediction.iteration_time_s == pytest.approx(
        seconds["forward"] + seconds["backward"] + seconds["update"]
    )
    assert second_physics.check(planner.load(question(**asked)), found).is_ok


def test_no_bound_counts_an_exchange_that_one_device_does_not_have() -> None:
    space = Space(planner.load(question(**alone(count=2))))
    site, row = next(site for site in space.sites if site.co_located), [1, 1, 256]
    cost = ParameterServerCost(space.problem, row_configuration(space, site, row)).predict()
    bound = float(lower_bounds(space, site, Boxes(np.array([row]), np.array([row])))[0])
    assert bound == pytest.approx(cost.value_of(space.problem.goal))


def behind_a_switch(*names: str, **changes: Any) -> dict[str, Any]:
    """Machines whose links are narrower than a switch's, or wider."""
    rates = {"narrow": "1 Gbit/s", "wide": "100 Gbit/s"}
    machines = [{"name": one, "count": 3, "device": "v100-sxm2-16g", "network": rates[one]} for one in names]
    calibration = {"utilisation": 0.5, "queue": {"switch": "10 Gbit/s"}}
    return {"cluster": {"machines": machines}, "calibration": calibration, **changes}


def test_a_group_that_saturates_the_switch_does_not_refuse_the_others() -> None:
    asked = behind_a_switch("narrow", "wide", fix={"num_machines": 3})
    found = planned(**asked)
    assert found.configuration.to_document()["servers"] == "narrow"
    assert found.status is Status.OPTIMAL
    assert any("on wide: the barrier link is saturated" in line for line in found.explanation)
    assert second_physics.check(planner.load(question(**asked)), found).is_ok


def test_one_machine_that_saturates_the_switch_may_serve_itself() -> None:
    found = planned(**behind_a_switch("wide", fix={"num_machines": 1}))
    assert found.prediction.breakdown_s["queueing"] == 0


def test_where_every_group_saturates_the_switch_nothing_fits_and_the_reason_is_said() -> None:
    with pytest.raises(InfeasibleError, match=r"(?s)servers on wide.*saturated.*Raise calibration\.queue\.switch"):
        planned(**behind_a_switch("wide", fix={"num_machines": 2}))


def test_devices_of_one_machine_exchange_and_pay_the_overhead_but_no_network() -> None:
    asked = alone(devices=4, inside="nvlink-2")
    found = planned(**asked)
    seconds = found.prediction.breakdown_s
    assert seconds["overhead"] == pytest.approx(0.005)
    assert seconds["pull"] == seconds["latency"] == seconds["queueing"] == 0
    assert second_physics.check(planner.load(question(**asked)), found).is_ok


def test_one_machine_needs_no_network_given_or_not() -> None:
    without = alone()
    del without["cluster"]["machines"][0]["network"], without["cluster"]["machines"][0]["latency"]
    assert planned(**without).objective == planned(**alone()).objective


# -- a batch that may vary ---------------------------------------------------------------------------------------------

DENSE = [
    {
        "name": f"layer{index}",
        "inputs": [f"layer{index - 1}"] if index else [],
        "multiply_adds": 1e7 * (index + 1),
        "parameters": f"{400 * (index + 1)} kB",
        "output": "4 kB",
    }
    for index in range(6)
]


def open_batch(most: int, *, num_groups: int) -> Problem:
    """A small network whose memory holds a million samples, on machines of one or two types."""
    return planner.load(
        question(
            dnn={"layers": DENSE, "max_global_batch": most, "dataset_samples": 1_281_167},
            cluster={"machines": MIXED[:num_groups]},
            calibration={"utilisation": 0.5, "split_tensors": True},
        )
    )


def test_a_batch_of_up_to_a_million_on_machines_of_one_type_is_proven_in_few_boxes() -> None:
    found = plan(open_batch(1_000_000, num_groups=1), Search())
    assert found.status is Status.OPTIMAL
    assert found.provenance.num_candidates < 100
    assert found.prediction.details["global_batch_size"] == 1_000_000


def test_a_batch_of_up_to_a_million_on_unlike_machines_leaves_a_gap_far_below_a_percent() -> None:
    assert plan(open_batch(1_000_000, num_groups=3), Search()).gap < 1e-3


@settings(max_examples=60)
@given(st.data())
def test_no_bound_of_a_wide_box_is_above_a_configuration_in_it_whatever_its_batch(data: st.DataObject) -> None:
    most = data.draw(st.sampled_from([7, 1000, 1_000_000]))
    space = Space(open_batch(most, num_groups=2))
    index = data.draw(st.integers(0, len(space.sites) - 1))
    site = space.sites[index]
    whole = root(space, site)
    low, high = whole.low[0].tolist(), whole.high[0].tolist()
    row = [data.draw(st.integers(one, other)) for one, other in zip(low, high, strict=True)]
    _, point = tightened(space, site, Boxes(np.array([row]), np.array([row])))
    if not len(point) or not point.are_points.all():
        return
    row = point.low[0].tolist()
    least = [data.draw(st.integers(one, other)) for one, other in zip(low, row, strict=True)]
    greatest = [data.draw(st.integers(one, other)) for one, other in zip(row, high, strict=True)]
    bound = float(lower_bounds(space, site, Boxes(np.array([least]), np.array([greatest])))[0])
    cost = ParameterServerCost(space.problem, row_configuration(space, site, row))
    assert bound <= cost.predict().value_of(space.problem.goal) * (1 + 1e-9)


@pytest.mark.parametrize(
    "asked",
    [
        {"constraints": {"devices": 1, "machines": 4}},
        {"fix": {"num_devices": 1, "num_machines": 4}},
        {"constraints": {"devices": 2, "machines": {"at_least": 5}}, "fix": {"co_located": False}},
    ],
)
def test_servers_beyond_the_tensors_are_not_dropped_where_so_many_machines_are_asked_for(asked: dict[str, Any]) -> None:
    layers = [
        {"name": "data", "kind": "input", "output": "12 kB"},
        {"name": "one", "kind": "fully_connected", "inputs": ["data"], "multiply_adds": 2e8, "parameters": "2 MB", "output": "400 kB"},
    ]  # fmt: skip
    device = {"name": "toy", "fp32": "1 TFLOP/s", "memory": "1 GB"}
    problem = planner.load(
        question(
            dnn={"layers": layers, "global_batch": 4, "dataset_samples": 1000},
            cluster={"machines": [{"count": 5, "device": device, "network": "10 Gbit/s", "latency": "20 us"}]},
            **asked,
        )
    )
    found = planner.plan(problem)
    chosen = found.configuration.to_document()
    assert chosen["num_parameter_servers"] == 3 and not chosen["co_located"]
    assert found.status is Status.OPTIMAL
    report = second_physics.check(problem, found)
    assert report.is_ok, report


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 200),
    st.lists(st.floats(1e-3, 1.0), min_size=4, max_size=4),
    st.integers(1, 40),
)
def test_no_share_can_be_lowered_and_none_is_slower_than_it_must_be(
    first: int, second: int, batch: int, seconds: list[float], most: int
) -> None:
    """Against every second at which some device could end."""
    space = object.__new__(Space)
    space._shares = {}
    space.fixed_share, space.fixed_batch, space.most_batch, space.is_equal = None, batch, batch, False
    space.devices, space.groups = np.array([1, 2]), [None, None]  # type: ignore[list-item]  # two of them
    space.most_samples = np.array([most, 2 * most])
    one_s, four_s = np.sort(np.array(seconds).reshape(2, 2), axis=0)
    space.computing = Passes.through(np.array([1.0, 4.0]), np.array([one_s, np.minimum(four_s + 1e-3, 4 * one_s)]))
    space.sample_s = space.computing.least_s(4)
    workers = np.array([first, second])
    number, found = workers * space.devices, space.shares_of(workers)
    if number.sum() > batch or (number * space.most_samples).sum() < batch:
        assert found is None
        return
    assert found is not None
    assert (number * found).sum() >= batch
    assert (found >= 1).all() and (found <= space.most_samples).all()
    assert all((number * found).sum() - one < batch or share == 1 for one, share in zip(number, found, strict=True))
    shares = np.arange(1, 2 * most + 1)
    taken_s = space.computing.of_each(np.stack((shares, shares), axis=1))  # by share and group
    ends_s = taken_s[found - 1, [0, 1]]
    for until_s in np.unique(taken_s[:, 0].tolist() + taken_s[:, 1].tolist()):
        fit = np.clip((taken_s <= until_s * (1 - 1e-9)).sum(axis=0), 1, space.most_samples)
        if (number * fit).sum() >= batch:
            assert (ends_s[found > 1] <= until_s).all()
            break
