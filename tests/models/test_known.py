"""Numbers that are kept are those that are worked out."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost import Floats
from planner.models.known import Known
from planner.models.layouts import Ints

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
