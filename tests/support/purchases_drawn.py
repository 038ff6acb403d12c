"""Price lists, limits and training times for questions of a purchase, drawn at random."""

import os
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from purchases import Machine, MadeUpTimes, row

from planner.procurement.prices import Offer

__all__ = ["blocks", "ideal", "number_drawn", "rows", "times"]

DEVICES = ("t4", "v100-sxm2-16g", "a10g")


def number_drawn(usually: int, whole: int) -> int:
    """Return how many questions a test draws: a few, or all with ``REFEREE=all``."""
    return whole if os.environ.get("REFEREE") == "all" else usually


@st.composite
def rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw a price list of two to five offers on every term, some of equal hardware."""
    found = []
    for index in range(draw(st.integers(2, 5))):
        one = draw(st.integers(0, 2))
        term = draw(st.sampled_from(["on-demand", "on-demand", "spot", "bought"]))
        changed: dict[str, Any] = {
            "provider": draw(st.sampled_from(["acme", "acme", "acme", "bolt"])),
            "term": term,
            "device": DEVICES[one],
            "devices": one + 1,
            "inside": "" if one == 0 else "pcie-3-x16",
            "network_gbit_per_s": draw(st.sampled_from([25, 25, 25, ""])),
            "usd_per_h": draw(st.sampled_from([0.5, 1, 2.5, 4])),
            "billing_s": draw(st.sampled_from([1, 60, 3600])),
            "least_billed_s": draw(st.sampled_from([0, 60, 7200])),
            "most": draw(st.sampled_from([1, 2, 3, "", ""])),
            "power_w": draw(st.sampled_from([200, 450, 1000])),
        }
        if term == "spot":
            changed["interruptions_per_h"] = draw(st.sampled_from([0, 0.1, 0.6]))
        if term == "bought":
            changed = {key: value for key, value in changed.items() if key not in ("billing_s", "least_billed_s")}
            changed |= {"purchase_usd": draw(st.sampled_from([4000, 20000])), "useful_life_years": 3}
            changed["hosting_usd_per_month"] = draw(st.sampled_from([0, 200]))
        found.append(row(f"m{index}", **changed))
    return found


@st.composite
def blocks(draw: st.DrawFn) -> dict[str, Any]:
    """Draw limits, an objective, and what a run needs besides."""
    block: dict[str, Any] = {
        "terms": ["on-demand", "spot", "bought"],
        "most_types": draw(st.integers(1, 3)),
        "machines": {"at_most": 4},
    }
    block["objective"] = draw(st.sampled_from(["cost", "time", "energy", "value_of_time"]))
    if block["objective"] == "value_of_time":
        block["usd_per_hour_saved"] = draw(st.sampled_from([0.5, 5, 60]))
    limits = {
        "deadline": st.sampled_from(["20 min", "1 h", "5 h"]),
        "budget": st.sampled_from(["3 USD", "10 USD", "9000 USD"]),
        "budget_rate": st.sampled_from(["1.37 USD/h", "2.61 USD/h", "91 USD/day"]),
        "utilisation": st.sampled_from([0.25, 0.8]),
        "capital": st.sampled_from(["4500 USD", "9000 USD"]),
        "power": st.sampled_from(["600 W", "2 kW"]),
        "machines": st.sampled_from([{"at_most": 3}, 3, 2, {"at_least": 2, "at_most": 4}]),
        "quotas": st.sampled_from([{"m0": 1}, {"t4": 2}, {"m*": 3}, {"*": 4, "m1": 0}]),
        "electricity": st.just({"usd_per_kwh": 0.3, "pue": 1.3}),
        "storage": st.just({"size": "500 GB", "usd_per_gb_month": 0.1}),
        "egress": st.just({"size": "10 GB", "usd_per_gb": 0.09}),
        "reserved": st.just({"discount": 0.4, "commitment": "2 h"}),
        "run": st.sampled_from(
            [
                {"start_up": "5 min", "evaluation": "3 min"},
                {"mean_time_between_failures": "30 h", "restart": "4 min", "start_up": "2 min"},
                {
                    "checkpoint": "20 s",
                    "checkpoint_interval": "10 min",
                    "restart": "3 min",
                    "mean_time_between_failures": "8 h",
                },
            ]
        ),
    }
    for name in draw(st.lists(st.sampled_from(sorted(limits)), max_size=4, unique=True)):
        block[name] = draw(limits[name])
    if "reserved" in block:
        block["terms"] = [*block["terms"], "reserved"]
    return block


@st.composite
def times(draw: st.DrawFn) -> MadeUpTimes:
    machine = st.builds(
        Machine,
        rate=st.sampled_from([0.3, 1.0, 2.0, 3.7]),
        useful=st.sampled_from([1, 2, 99]),
        room=st.sampled_from([0.5, 1.0, 2.0]),
    )
    return MadeUpTimes(
        machines={device: draw(machine) for device in DEVICES},
        work=draw(st.sampled_from([600.0, 7200.0])),
        serial_s=draw(st.sampled_from([0.0, 300.0])),
        need=draw(st.sampled_from([0.0, 1.5])),
        loss=draw(st.sampled_from([0.0, 0.05, 0.4])),
    )


def ideal(given_times: MadeUpTimes) -> Callable[[Offer], float]:
    return lambda offer: given_times.machines[offer.device].rate / given_times.work
