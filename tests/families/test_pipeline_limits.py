"""Limits of the search over pipelines: what is listed, what is sized before it is made, and bounds of what is left out."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import every_value, layer, question, small_questions

import planner
from planner.errors import NoAnswerError
from planner.families.pipeline import domain as pipeline_domain
from planner.families.pipeline import domain as pipeline_line
from planner.families.pipeline import rows as pipeline_plain
from planner.families.pipeline import rows as pipeline_rows
from planner.families.pipeline import search as pipeline_search
from planner.families.pipeline import search as pipeline_sources
from planner.families.pipeline.domain import MOST_NUMBERS, Domain
from planner.families.pipeline.rows import StageRows
from planner.families.pipeline.search import plan
from planner.problem import Problem
from planner.search import Search
from planner.solvers import chain, pipelines
from planner.solvers.chain import FewestDevices
from planner.solvers.pipeline_bounds import Schedule
from planner.solvers.pipeline_tables import Stack, Tables, table_bytes


def kinds(number: int, count: int, devices: int, layers: int = 6, batch: int = 32) -> Problem:
    """A line of layers on machines of several kinds."""
    rows = [
        {
            "name": f"k{index}",
            "count": count,
            "device": "v100-pcie-16gb",
            "devices": devices,
            "inside": "pcie-3-x16",
            "network": f"{10 + index} Gbit/s",
        }
        for index in range(number)
    ]
    return planner.load(question(layers, dnn={"global_batch": batch}, cluster={"machines": rows}))


class Readings:
    """A clock that moves by a second with every reading."""

    def __init__(self, limit: int) -> None:
        self.now_s = 0.0
        self.search = Search(clock=self.read, resident=lambda: 0, time_limit_s=float(limit))

    def read(self) -> float:
        self.now_s += 1.0
        return self.now_s


# -- batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [10**9, 10**13, 10**15])
def test_numbers_of_micro_batches_of_a_huge_batch_are_not_listed_one_by_one(batch: int) -> None:
    domain = Domain(planner.load(question(4, dnn={"global_batch": batch})))
    numbers = domain.numbers_of_microbatches
    assert len(numbers) <= MOST_NUMBERS
    assert {1, 2, 3, 100, batch, -(-batch // 2), -(-batch // 100)} <= set(numbers)
    ratios = np.divide(numbers[1:], numbers[:-1])
    assert ratios[1_000:-1_000].max() < 1.1


@pytest.mark.parametrize("batch", [10**13, 10**15])
def test_a_huge_batch_gets_an_answer_and_the_answer_says_what_was_not_tried(batch: int) -> None:
    clock = Readings(500)
    found = plan(planner.load(question(4, dnn={"global_batch": batch})), clock.search)
    assert found.bound <= found.objective
    assert found.gap < 0.01
    assert any(line.startswith("of very many numbers of micro-batches") for line in found.explanation)


@settings(max_examples=12)
@given(small_questions())
def test_numbers_of_micro_batches_that_are_not_tried_count_in_the_bound(asked: dict[str, Any]) -> None:
    problem = planner.load(asked)
    values = every_value(problem)
    with patch.object(pipeline_domain, "MOST_NUMBERS", 2):
        try:
            found = plan(problem, Search())
        except planner.errors.InfeasibleError:
            assert not values
        except NoAnswerError:
            pass  # none of those tried fits, and others were not
        else:
            assert found.bound <= min(values) * (1 + 1e-9)
            assert found.objective >= min(values) * (1 - 1e-9)


# -- tables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "count", "devices", "layers"),
    [(10, 2, 4, 20), (10, 10_000, 8, 20), (1, 131_072, 8, 20), (3, 8, 8, 1_500)],
)
def test_tables_are_sized_before_they_are_made(number: int, count: int, devices: int, layers: int) -> None:
    sized: list[int] = []

    def counted(*asked: Any) -> int:
        sized.append(table_bytes(*asked))
        return sized[-1]

    def made(costs: Any, stack: Any, num_stages: int, *_: Any) -> Tables:
        assert sized[-1] <= 1 << 30
        assert sized[-1] == table_bytes(costs, stack, num_stages)
        raise NoAnswerError("far enough")

    problem = kinds(number, count, devices, layers)
    with (
        patch.object(pipeline_plain, "table_bytes", counted),
        patch.object(pipeline_plain, "Tables", made),
    ):
        try:
            plan(problem, Readings(700).search)
        except NoAnswerError:
            assert sized or number == 1


def test_what_tables_are_said_to_take_they_take() -> None:
    rows = StageRows(Domain(kinds(2, 2, 4)), [4])
    stack = Stack.of(Schedule(num_microbatches=4), rows)
    for num_stages in (0, 3):
        tables = Tables(rows, stack, num_stages, Search())
        moves = [getattr(tables._moves, name) for name in tables._moves.__dataclass_fields__]
        taken = tables.entries.nbytes + sum(one.nbytes for one in moves)
        assert taken <= table_bytes(rows, stack, num_stages) <= 20 * taken


@settings(max_examples=12)
@given(small_questions(), st.sampled_from(["tables", "nodes", "rows", "memory"]))
def test_what_does_not_fit_in_memory_is_bounded(asked: dict[str, Any], which: str) -> None:
    problem = planner.load(asked)
    values = every_value(problem)
    places: dict[str, tuple[Any, str]] = {
        "tables": (pipeline_plain, "_MOST_BYTES"),
        "nodes": (pipelines, "_MOST_NODES"),
        "rows": (pipeline_sources, "_MOST_ROWS"),
        "memory": (chain, "_MOST_NUMBERS"),
    }
    with patch.object(*places[which], 3):
        try:
            found = plan(problem, Search())
        except planner.errors.InfeasibleError:
            assert not values
        except NoAnswerError:
            pass
        else:
            assert found.bound <= min(values) * (1 + 1e-9)
            assert found.objective >= min(values) * (1 - 1e-9)


@settings(max_examples=12)
@given(small_questions())
def test_several_numbers_of_replicas_of_an_interleaved_pipeline_have_a_true_bound(asked: dict[str, Any]) -> None:
    asked = {**asked, "fix": {**asked.get("fix", {}), "schedule": "interleaved"}}
    problem = planner.load(asked)
    values = every_value(problem)
    with patch.object(pipeline_sources, "_MOST_REPLICAS", 2):
        try:
            found = plan(problem, Search())
        except planner.errors.PlannerError:
            assert not values
        else:
            assert found.bound <= min(values) * (1 + 1e-9)


@given(st.integers(1, 500), st.integers(1, 300))
def test_choices_are_the_least_numbers_of_devices_of_every_share(size: int, most: int) -> None:
    assert pipeline_rows._firsts(size, most) == sorted({-(-size // -(-size // one)) for one in range(1, most + 1)})


@pytest.mark.parametrize("size", [10**6, 10**15])
def test_choices_of_a_million_devices_are_few_and_leave_none_out(size: int) -> None:
    firsts = pipeline_rows._firsts(size, 2**20)
    assert len(firsts) <= 512
    assert (firsts[0], firsts[-1]) == (1, 2**20)


# -- layers ------------------------------------------------------------------------------------------------------------


def test_all_runs_of_a_long_line_are_not_listed() -> None:
    problem = planner.load(question(20_000, dnn={"layers": [layer(index) for index in range(20_000)]}))
    domain = Domain(problem)
    with patch.object(pipeline_line, "_line", side_effect=MemoryError):
        assert pipeline_line.hopeless_numbers(domain, Search()) == set()
        assert list(pipeline_line.floors_s(domain, [1], Search())) == []


def test_filling_a_table_of_devices_ends_with_the_search() -> None:
    asked: list[int] = []

    def needs(k: int, firsts: Any, width: int) -> Any:
        asked.append(len(firsts))
        return np.ones((1, len(firsts), width), dtype=np.int64)

    clock = Readings(3)
    fewest = FewestDevices(4_000, [64], needs, clock.search)
    assert not fewest.add()
    assert fewest.is_stopped
    assert sum(asked) * 4_000 <= 3 * 2_000_000


def test_a_search_that_is_broken_off_has_kept_its_best_pipeline() -> None:
    problem, search = planner.load(question(6)), Search()
    with patch.object(pipeline_search, "sources_of", side_effect=MemoryError), pytest.raises(MemoryError):
        plan(problem, search)
    assert search.kept is not None
    assert search.kept().objective >= plan(problem, Search()).objective * (1 - 1e-9)


def test_tables_that_do_not_fit_together_are_filled_alone() -> None:
    problem = kinds(2, 4, 2, layers=3, batch=64)
    whole = plan(problem, Search())
    asked: list[tuple[int, float]] = []

    def seen(rows: StageRows, stack: Stack, num_stages: int) -> float:
        asked.append((len(rows.numbers), found := table_bytes(rows, stack, num_stages)))
        return found

    with patch.object(pipeline_rows, "table_bytes", seen):
        plan(problem, Search())
    alone = max(2 * needed / number for number, needed in asked)  # more than any source needs
    assert max(needed for _, needed in asked) > alone
    with patch.object(pipeline_rows, "_MOST_BYTES", alone):
        found = plan(problem, Search())
    assert (found.status, found.objective, found.bound) == (whole.status, whole.objective, whole.bound)
