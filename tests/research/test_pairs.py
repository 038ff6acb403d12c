"""Pairs of measured layouts: what differs, which of both comes first, and how they are ranked."""

from pathlib import Path

import pytest

from research.transformer_fit.pairs import pairs_of, table_text
from research.transformer_fit.rows import read_rows


def test_of_a_pair_the_layout_with_more_of_the_first_decision_comes_first(data_folder: Path) -> None:
    """Predicted as they were measured all pairs are ranked right; the other way round none is."""
    rows = [row for row in read_rows(data_folder) if row.family.startswith("nanotron")]
    found = pairs_of((row, None, row.iteration_s) for row in rows)
    turned = pairs_of((row, None, 1 / row.iteration_s) for row in rows)
    assert [one.predicted for one in found] == pytest.approx([one.measured for one in found])
    for pairs, share in ((found, "100%"), (turned, "0%")):
        lines = table_text(pairs).splitlines()[2:]
        assert len(lines) > 4
        assert all(f"| {share} of" in one for one in lines)
    by_tensor = [one.measured for one in found if one.differing == "tensor"]
    assert len(by_tensor) > 10
    assert min(by_tensor) > -0.03  # a larger tensor degree hardly ever took less time
