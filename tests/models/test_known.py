"""Numbers that are kept are those that are worked out."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hybrid_questions import MOE, RATES, every_point, question
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost import Floats
from planner.families.hybrid.cost import GroupCost, HybridCost, Placement, costs_of
from planner.families.hybrid.space import Space
from planner.models import memory, transformer_interval
from planner.models.known import Known
from planner.models.layouts import ContextMethod, Ints, Layouts
from planner.models.tiers import ORDERS

Row = tuple[int, ...]
ROWS = st.tuples(*[st.integers(1, 5)] * 3, st.integers(1, 4), st.integers(1, 9), st.integers(0, 1))


@settings(max_examples=60, deadline=None)
@given(
    calls=st.lists(st.lists(ROWS, min_size=1, max_size=12), max_size=6),
    kind=st.sampled_from(["whole", "large", "fractions"]),
)
def test_columns_are_the_same_whatever_was_asked_before_and_worked_out_once(calls: list[list[Row]], kind: str) -> None:
    known = Known()
    asked: list[Row] = []
    for rows in calls:
        numbers = [np.array(column) for column in zip(*rows, strict=True)]
        if kind == "fractions":  # are not kept
            numbers[4] = numbers[4] + 0.5
        if kind == "large":  # wider than others
            numbers[4] = numbers[4] << 40
        whole = np.array([np.sum([one * 7.0**at for at, one in enumerate(numbers)], axis=0), numbers[4] / 3])

        def worked_out(places: Ints, whole: Floats = whole, rows: list[Row] = rows) -> Floats:
            asked.extend(rows[at] for at in places.tolist())
            return np.asarray(whole[:, places])

        assert (known.of(numbers, worked_out) == whole).all()
    if kind != "fractions":
        assert len(asked) == len(set(asked))


@pytest.mark.parametrize(("num_rows", "most"), [(1, 160_000), (500, 12_000)])
def test_what_is_kept_is_bounded_in_bytes_however_many_rows_a_column_has(num_rows: int, most: int) -> None:
    known, asked = Known(), 0

    def worked_out(places: Ints) -> Floats:
        nonlocal asked
        asked += len(places)
        return np.zeros((num_rows, len(places)))

    for _ in range(2):
        for start in range(0, most, 1_000):
            known.of([np.arange(start, start + 1_000)], worked_out)
    kept = sum(sys.getsizeof(key) + sys.getsizeof(column) for key, column in known._columns.items())
    assert 0 < kept <= 28 << 20
    assert most / 3 < len(known._columns) < most
    assert asked == 2 * most - len(known._columns)


NETWORK: dict[str, Any] = {**MOE, "layers": 6, "experts": {**MOE["experts"], "dense_first": 2}}
ASSUMED: dict[str, Any] = {"memory_reserve": "1 GB", "expert_imbalance": 1.0}
RATES_OF_ANOTHER = {**RATES, "software": {"megatron-core": {**RATES["software"]["megatron-core"], "launch_s": 1e-3}}}
# In what questions differ on which numbers that are kept depend.
CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "vocabulary": {"transformer": {**NETWORK, "vocabulary": 50_000}},
    "keys and values": {"transformer": {**NETWORK, "kv_heads": 8}},
    "experts": {"transformer": {**NETWORK, "experts": {**NETWORK["experts"], "size": 512}}},
    "reserve": {"calibration": {**ASSUMED, "memory_reserve": "2 GB"}},
    "imbalance": {"calibration": {**ASSUMED, "expert_imbalance": 1.5}},
    "network": {"network": "10 Gbit/s"},
    "cards": {"cards": 1},
    "software": {"rates": RATES_OF_ANOTHER},
}


def cost_of(**changes: Any) -> GroupCost:
    return costs_of(question(**{"transformer": NETWORK, "calibration": ASSUMED, **changes}))[0]


def drawn_layouts(cost: GroupCost) -> Layouts:
    """Layouts of a question's grid, with any order of degrees, method for long sequences and modules computed again."""
    points, lots = every_point(Space.of(cost.even).grid()), np.random.default_rng(0)
    kept = lots.permutation(len(points["tensor"]))[:600]
    columns = {name: column[kept] for name, column in points.items()}
    for name, number in (("order", len(ORDERS)), ("context_method", len(ContextMethod)), ("recompute_modules", 4)):
        columns[name] = lots.integers(0, number, len(kept))
    return cost.layouts(columns)


def figures_of(cost: GroupCost, layouts: Layouts) -> list[Floats]:
    """Seconds of micro-batches, bytes of fullest stages, and those of a cut."""
    cuts, plain = HybridCost((cost,), Placement.STAGES).memory, replace(layouts, interleave=np.ones_like(layouts.data))
    held = cuts.held_bytes(plain, np.tile(np.arange(1, 4)[:, None], len(layouts)))
    return [*cost.interval(layouts).values(), *cost.memory(layouts).values(), held]


def worked_out_anew(_: Known, numbers: Sequence[Ints], worked_out: Any) -> Floats:
    return np.asarray(worked_out(np.arange(len(numbers[0]))))


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_kept_of_one_question_answers_no_other(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kept in (memory._known_memory, transformer_interval._known_intervals, transformer_interval._known_computing):
        kept.cache_clear()
    first, other = cost_of(), cost_of(**CHANGES[change])
    layouts = drawn_layouts(first)
    before, after = figures_of(first, layouts), figures_of(other, layouts)
    monkeypatch.setattr(Known, "of", worked_out_anew)
    for cost, found in ((first, before), (other, after)):
        for one, true in zip(found, figures_of(cost, layouts), strict=True):
            np.testing.assert_array_equal(one, true)
    is_same = all(np.array_equal(one, same) for one, same in zip(before, after, strict=True))
    assert is_same == (change == "nothing")
