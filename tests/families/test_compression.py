"""Compression under limits near all of the gradient, which takes so long that everything else is its rounding."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.solution import SAME
from tests.referee import second_physics


def question(family: str, size: float, work: float, time_s: float, at_most: float, **machine: Any) -> dict[str, Any]:
    """One layer on two machines."""
    device = {"name": "d", "fp32": "13.7 TFLOP/s"}
    return {
        "dnn": {
            "layers": [{"name": "one", "multiply_adds": work, "parameters": f"{size} B", "output": "0 B"}],
            "dataset_samples": 64,
            "global_batch": 11,
        },
        "cluster": {"machines": [{"count": 2, "device": device, "network": "400 Gbit/s", **machine}]},
        "families": [family],
        "compression": {"time": f"{time_s} s", "at_most": at_most},
    }


def test_rounding_of_a_long_compression_ends_no_search() -> None:
    found = planner.plan(planner.load(question("parameter_server", 1e6, 1000, 1.0, 0.999)))
    assert found.bound <= found.objective


@settings(max_examples=40)
@given(
    st.sampled_from(["parameter_server", "all_reduce"]),
    st.floats(0, 15),
    st.floats(-12, 9),
    st.floats(2, 12),
    st.sampled_from([1e3, 1e9, 1e14]),
    st.sampled_from(["400 Gbit/s", "1 Mbit/s"]),
)
def test_no_limit_of_compression_near_one_ends_a_search(
    family: str, nines: float, time: float, size: float, work: float, network: str
) -> None:
    asked = question(family, 10**size, work, 10**time, 1 - 10**-nines, network=network)
    problem = planner.load(asked)
    found = planner.plan(problem)
    assert found.bound <= found.objective * (1 + SAME)
    without = planner.plan(planner.load({key: value for key, value in asked.items() if key != "compression"}))
    assert found.objective <= without.objective * (1 + 2e-6)  # gradients may always be left whole
    assert second_physics.check(problem, found).is_ok
