"""What every family, collective, device and exporter keeps: checks for the tests of a plug-in, as for our own.

A check returns nothing where all is well, and raises AssertionError with what is wrong. In a test of pytest::

    @pytest.mark.parametrize("name", planner.testing.QUESTIONS)
    def test_our_family_keeps_the_contract(name):
        planner.testing.check_family("our_family", planner.testing.QUESTIONS[name])
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

import planner
from planner import data
from planner.answer.documents import dump
from planner.answer.plan import plan_answer
from planner.answer.text import text_of
from planner.checks import report_text
from planner.data.devices import DEVICES
from planner.errors import InfeasibleError, NoAnswerError, SpecError
from planner.exporters import TARGETS
from planner.families import FAMILIES
from planner.models.communication import ALL_REDUCES, Affines, Participants
from planner.plan import Plan
from planner.planning import view_of
from planner.problem import Problem
from planner.search import Search
from planner.solution import Status

_GENEROUS_S = 30.0  # far beyond what any of these questions needs, and a guard
_ROUNDED = 1 + 1e-9

# Small questions of every kind, with networks of layers; a family may refuse any, with a reason.
LAYERS: list[dict[str, Any]] = [
    {"name": "data", "kind": "input", "output": "12 kB"},
    {
        "name": "one",
        "kind": "fully_connected",
        "inputs": ["data"],
        "multiply_adds": 2e8,
        "parameters": "2 MB",
        "output": "400 kB",
    },
    {
        "name": "two",
        "kind": "fully_connected",
        "inputs": ["one"],
        "multiply_adds": 3e8,
        "parameters": "4 MB",
        "output": "200 kB",
    },
    {
        "name": "three",
        "kind": "fully_connected",
        "inputs": ["two"],
        "multiply_adds": 1e8,
        "parameters": "500 kB",
        "output": "4 kB",
    },
]
DNN: dict[str, Any] = {"layers": LAYERS, "global_batch": 24, "dataset_samples": 5_000}
TOY: dict[str, Any] = {"name": "toy", "fp32": "1 TFLOP/s", "bf16": "1 TFLOP/s", "memory": "64 MiB"}
FAST: dict[str, Any] = {"name": "fast", "fp32": "3 TFLOP/s", "bf16": "3 TFLOP/s", "memory": "128 MiB"}
EQUAL: dict[str, Any] = {"machines": [{"count": 3, "device": TOY, "network": "10 Gbit/s", "latency": "20 us"}]}
INSIDE: dict[str, Any] = {
    "machines": [{"count": 2, "devices": 2, "device": TOY, "inside": "pcie-3-x16", "network": "10 Gbit/s"}]
}
MIXED: dict[str, Any] = {
    "machines": [
        {"name": "slow", "count": 2, "device": TOY, "network": "1 Gbit/s", "latency": "20 us"},
        {"name": "quick", "count": 1, "device": FAST, "network": "10 Gbit/s", "latency": "20 us"},
    ]
}
QUESTIONS: dict[str, dict[str, Any]] = {
    "equal machines": {"dnn": DNN, "cluster": EQUAL},
    "machines of two devices": {"dnn": DNN, "cluster": INSIDE},
    "mixed machines": {"dnn": DNN, "cluster": MIXED},
    "a batch that may vary": {
        "dnn": {"layers": LAYERS, "max_global_batch": 16, "dataset_samples": 5_000},
        "cluster": EQUAL,
    },
    "a batch per device": {"dnn": {"layers": LAYERS, "batch_per_device": 5}, "cluster": EQUAL},
    "an iteration": {"dnn": DNN, "cluster": EQUAL, "objective": "iteration_time"},
    "a training": {"dnn": {**DNN, "epochs": 7}, "cluster": EQUAL, "objective": "training_time"},
    "little memory": {"dnn": DNN, "cluster": INSIDE, "constraints": {"memory_per_device": "24 MiB"}},
    "at most two machines": {"dnn": DNN, "cluster": EQUAL, "constraints": {"machines": {"at_most": 2}}},
    "exactly three machines": {"dnn": DNN, "cluster": EQUAL, "constraints": {"machines": 3}},
    "a deadline": {"dnn": DNN, "cluster": EQUAL, "constraints": {"deadline": "15 min"}},
    "stale gradients": {"dnn": DNN, "cluster": EQUAL, "constraints": {"max_staleness": 2}},
    "a pinned device": {"dnn": DNN, "cluster": MIXED, "fix": {"device": "toy"}},
    "slow storage": {
        "dnn": {**DNN, "sample_bytes": "1 MB"},
        "cluster": {
            "machines": [
                {**EQUAL["machines"][0], "storage": {"bandwidth": "100 MB/s", "shared": True}, "host_link": "1 GB/s"}
            ]
        },
    },
    "measured seconds": {
        "dnn": {
            "layers": [{**layer, "multiply_adds": 0, "forward": "2 ms", "backward": "5 ms"} for layer in LAYERS],
            "profile_batch": 4,
            "global_batch": 12,
            "dataset_samples": 1_000,
        },
        "cluster": EQUAL,
        "calibration": {"negotiate": "1 ms", "wait": "exact", "timeout": "4 ms", "strategy": "mxnet"},
    },
    **{f"preset {name}": {"dnn": {"zoo": "adam-mnist"}, "cluster": {"preset": name}} for name in data.preset_names()},
}


def check_plan(problem: Problem, plan: Plan) -> None:
    """Hold a plan against itself: its proof, its cost computed again, and its block read again.

    Raises
    ------
    AssertionError
        With what is wrong.
    """
    family = FAMILIES[plan.family]
    assert 0 <= plan.bound <= plan.objective, f"bound {plan.bound}, objective {plan.objective}"
    assert (plan.status is Status.OPTIMAL) == (plan.bound == plan.objective), f"{plan.status}, gap {plan.gap}"
    costs: Any = family.predict(problem, plan.configuration)
    assert plan.objective == costs.value_of(plan.goal), "the objective is not what predict says"
    parts, whole = sum(costs.breakdown_s.values()), costs.iteration_time_s
    assert np.isclose(parts, whole, rtol=1e-6), f"breakdown_s sums to {parts} s, an iteration takes {whole} s"
    report = planner.check(problem, plan)
    assert report.is_ok, report_text(report)


def check_family(name: str, question: Mapping[str, object]) -> Plan | None:
    """Ask one family a question alone, and hold it against the contract of all families; return its plan.

    A plan passes :func:`check_plan`, comes out the same when it is asked again, and is shown; a search that is over
    before it starts gives no answer, or a plan with a bound that the best plan does not beat. No plan has a reason.

    Raises
    ------
    AssertionError
        With what is wrong.
    """
    problem = planner.load({**question, "families": [name]})
    try:
        found = planner.plan(problem, time_limit_s=_GENEROUS_S)
    except (InfeasibleError, NoAnswerError, SpecError) as error:
        assert str(error).strip(), "a refusal has a reason"
        return None
    assert found.family == name
    check_plan(problem, found)
    again = planner.plan(problem, time_limit_s=_GENEROUS_S)
    assert dump(again.to_dict()) == dump(found.to_dict()), "the same question has another answer"
    try:
        short = FAMILIES[name].search(problem, Search(time_limit_s=0.0))
    except (NoAnswerError, InfeasibleError, SpecError):
        pass
    else:
        assert short.bound <= found.objective * _ROUNDED, "the bound of a short search is above a plan"
        assert short.objective >= found.bound * (2 - _ROUNDED), "a short search beats the bound"
    view = view_of(problem, found)
    assert found.configuration.headline in text_of(plan_answer(found, view))
    ends_s = [span.end_s for span in view.timeline().spans]
    assert not ends_s or max(ends_s) <= found.prediction.iteration_time_s * (1 + 1e-6), "spans end after the iteration"
    assert view.family.placement().devices is not None
    return found


def check_all_reduce(name: str) -> None:
    """Hold an algorithm of all-reduces against what searches rely on.

    One device sends nothing; no cost is negative or endless; faster links and shorter hops never cost more; many
    settings at once cost what each does alone.

    Raises
    ------
    AssertionError
        With what is wrong.
    """
    assert name in ALL_REDUCES, f"{name}: there is no such all-reduce; is its package installed here?"
    cost_of, numbers = ALL_REDUCES[name], np.array([1, 2, 3, 4, 8, 17, 64])

    def cost(rate: float, latency_s: float, count: Any = numbers) -> Any:
        places = Participants(
            num_devices=count,
            num_machines=count,
            devices_per_machine=1,
            network_bytes_per_s=np.full(np.shape(count), rate),
            network_latency_s=np.full(np.shape(count), latency_s),
            overhead_s=1e-5,
        )
        found = cost_of(places)
        what = f"{name}: it gives {type(found).__name__}, where planner.models.communication.Affines is asked for"
        assert isinstance(found, Affines), what
        return found

    slow, fast, near = cost(1e9, 1e-5), cost(2e9, 1e-5), cost(1e9, 1e-6)
    for one in (slow, fast, near):
        both = np.array([one.startup_s, one.per_byte_s])
        assert both.shape == (2, len(numbers)), f"{name}: of {len(numbers)} settings it gives {both.shape[1:]}"
        assert np.isfinite(both).all(), f"{name}: a cost is endless"
        assert (both >= 0).all(), f"{name}: a cost is negative"
        assert not both[:, 0].any(), f"{name}: one device sends something"
    assert (fast.per_byte_s <= slow.per_byte_s).all(), f"{name}: a faster link costs more"
    assert (near.startup_s <= slow.startup_s).all(), f"{name}: a shorter hop costs more"
    for index, number in enumerate(numbers):
        alone = cost(1e9, 1e-5, np.array([number]))
        assert np.isclose(alone.per_byte_s[0], slow.per_byte_s[index]), f"{name}: {number} devices alone cost otherwise"


def check_device(name: str) -> None:
    """Hold a device against what predictions need: a peak, memory and its rate, and a source.

    Raises
    ------
    AssertionError
        With what is wrong.
    """
    assert name in DEVICES, f"{name}: there is no such device; is its package installed here?"
    device = DEVICES[name]
    assert device.peak_flop_per_s, f"{name}: there is no peak"
    assert all(1e9 < peak < 1e18 for peak in device.peak_flop_per_s.values()), f"{name}: peaks are in FLOP/s"
    assert device.memory_bytes > 2**20, f"{name}: memory is in bytes"
    assert device.memory_bandwidth_bytes_per_s > 1e9, f"{name}: the memory's rate is in bytes/s"
    assert device.source, f"{name}: where do its figures stand?"


def check_exporter(name: str, plan: Plan) -> None:
    """Export a plan, and read its decisions back: files are text, each once, and the target knows its own.

    Raises
    ------
    AssertionError
        With what is wrong.
    """
    from pathlib import Path  # noqa: PLC0415

    files, exporter = planner.export(plan, name), TARGETS[name].exporter(name)
    assert files.target == name, f"its files say that they are for {files.target}"
    assert files.files, f"{name}: there is no file"
    again = planner.export(plan, name)
    assert again == files, f"{name}: the same plan gives other files"
    known = [path for path, text in files.files.items() if exporter.recognises(Path(path), text)]
    assert known, f"{name}: it recognises none of its files"
    for path in known:
        assert exporter.degrees(Path(path), files.files[path]), f"{name}: {path} gives no decision back"
