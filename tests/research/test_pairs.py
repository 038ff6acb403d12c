"""Pairs of measured layouts: what differs, which of both comes first, and how they are ranked."""

from pathlib import Path

import pytest

from research.transformer_fit.low_rows import published_rows, read_low_rows
from research.transformer_fit.pairs import pairs_of, published_text, table_text
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


def test_steps_that_are_printed_elsewhere_fill_their_devices_and_are_in_no_table(data_folder: Path) -> None:
    """Each is told with its layout; half of its time in the prediction is an error of -50 %."""
    found = published_rows()
    assert len(found) == 22
    told = {(one.model, one.low, one.row.device, tuple(one.row.layout.items())) for one in read_low_rows(data_folder)}
    for one in found:
        assert one.row.transformer.experts is not None
        assert (one.model, one.low, one.row.device, tuple(one.row.layout.items())) not in told
    lines = published_text(found, [one.row.iteration_s / 2 for one in found]).splitlines()[2:]
    assert len(lines) == len(found)
    assert all(line.endswith("| -50.0% |") for line in lines)
    assert lines[1].startswith("| Qwen3_235B_a22B | bf16 | 256 x h100-sxm | t2 p8 d16 e32 v4 b1 overlap | 17.6 s |")
