"""What notebooks show: whole and escaped, small, the same every time, with the figures of the objects themselves."""

import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import planner
from planner.answer.notebook import MOST_ROWS
from planner.cluster import Cluster, Device, Link, MachineGroup, Switch
from planner.dnn import Dnn, Layer, Tensor
from planner.plan import Plan
from planner.problem import Problem
from planner.solution import Status

QUESTION = {
    "dnn": {"zoo": "vgg16", "batch_per_device": 32},
    "cluster": {"preset": "osf-testbed"},
    "calibration": {"utilisation": 0.5, "bandwidth_efficiency": 1},
}
MOST_BYTES = 20_000


class Reader(HTMLParser):
    """Elements and texts of a fragment; all that was opened is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.cells: list[str] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        assert {name for name, _ in attrs} <= {"scope", "colspan"}
        if tag != "br":
            self._open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self._open[-1:] == ["td"]:
            self.cells[-1] += data

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def html_of(shown: Any) -> str:
    """What a notebook asks an object for."""
    text = shown._repr_html_()
    assert isinstance(text, str)
    return text


def network(name: str, kind: str = "dense") -> Dnn:
    weights = (Tensor(name="w", num_elements=10),)
    layers = [(Layer(name="in", kind="input", output_shape=(3,)), ()), *(
        (Layer(name=f"{name}{index}", kind=f"{kind}{index}", output_shape=(2,), tensors=weights), ("in",))
        for index in range(3)
    )]  # fmt: skip
    return Dnn(name, layers)


def machines(*names: str) -> Cluster:
    groups = [MachineGroup(name=name, count=2, device=Device(name=f"d-{name}")) for name in names]
    link = Link(bandwidth_bytes_per_s=1.25e9, latency_s=2e-5)
    return Cluster("c", [*groups, Switch(name="sw|")], [(name, "sw|", link) for name in names])


@pytest.fixture(scope="module")
def problem() -> Problem:
    return planner.load(QUESTION)


@pytest.fixture(scope="module")
def plan(problem: Problem) -> Plan:
    found: Plan = planner.plan(problem)
    return found


def test_a_network_shows_its_totals_and_its_kinds(problem: Problem) -> None:
    read = Reader(html_of(problem.dnn))
    assert "138,357,544 trainable parameters" in read.text
    assert read.cells[:3] == ["fully_connected", "3", "123,642,856"]
    counts = read.cells[1::5]
    assert sum(int(one) for one in counts) == len(problem.dnn.layers)


def test_a_cluster_shows_every_group_and_every_link() -> None:
    read = Reader(html_of(machines("a", "b")))
    assert "4 machines, 4 devices" in read.text
    assert read.cells[:7] == ["a", "2", "1", "d-a", "not limited", "none", "1"]
    assert read.cells[14:] == ["a - sw|", "10 Gbit/s", "20 us", "b - sw|", "10 Gbit/s", "20 us"]


def test_a_plan_shows_the_answer_its_proof_its_decisions_and_its_time(plan: Plan) -> None:
    read = Reader(html_of(plan))
    assert "all_reduce on 32 devices (4 machines x 8): an epoch takes 10 min" in read.text
    assert "Proven optimal within what was searched, under this cost model." in read.text
    for name in (*plan.configuration.to_document(), "forward", "backward", "exposed all-reduce"):
        assert name in read.cells
    shares = [float(cell[:-1]) for cell in read.cells if cell.endswith("%")]
    assert sum(shares) == pytest.approx(100, abs=0.3)


def test_a_plan_that_is_not_proven_says_its_gap(plan: Plan) -> None:
    open_plan = replace(plan, status=Status.FEASIBLE, bound=plan.objective / 2)
    assert "Best found, not proven" in html_of(open_plan)
    assert "(gap 50 %)" in html_of(open_plan)


def test_a_prediction_shows_the_same_times_as_its_plan(plan: Plan) -> None:
    read = Reader(html_of(plan.prediction))
    assert "iteration 479 ms, epoch 10 min" in read.text
    assert set(read.cells) <= set(Reader(html_of(plan)).cells)


@given(st.text(min_size=1, max_size=30))
def test_names_are_text_whatever_stands_in_them(name: str) -> None:
    name = f"<script>&'\"{name}"
    for shown in (network(name, kind=name), machines(name)):
        read = Reader(html_of(shown))
        assert "script" not in read.names
    assert f"{name}0" in Reader(html_of(network("x", kind=name))).cells


def test_names_in_a_plan_are_text(plan: Plan) -> None:
    read = Reader(html_of(replace(plan, family="<b>x", substitutions=("<i>head</i>",))))
    assert not {"b", "i"} & read.names
    assert "<b>x on 32 devices" in read.text


def test_what_is_shown_is_small_and_the_same_each_time(problem: Problem, plan: Plan) -> None:
    wide = machines(*(f"group-{index}" for index in range(200)))
    for shown in (problem.dnn, problem.cluster, plan, plan.prediction, wide, network("x" * 100_000, "k" * 100_000)):
        text = html_of(shown)
        assert text == html_of(shown)
        assert len(text.encode()) < MOST_BYTES
    assert f"... and {200 - MOST_ROWS} more" in html_of(wide)


def test_a_network_is_shown_without_any_large_library() -> None:
    code = (
        "import sys; from planner.dnn import Dnn, Layer; "
        "Dnn('x', [(Layer(name='a', kind='input', output_shape=(1,)), ())])._repr_html_(); "
        "print(sorted({'plotly', 'jinja2', 'pydantic', 'ortools', 'scipy', 'planner.answer.html'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
