"""The report on steps measured on several kinds of machines."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from research import ROOT
from research.transformer_fit.mixed import (
    FITTED,
    READING,
    fitted_figures,
    predicted_s,
    rank_correlation,
    read_mixed_rows,
)

# What is aimed at for rows on several kinds, to which nothing is fitted.
LEAST_RANK_CORRELATION = 0.9
MOST_MEAN_ERROR = 0.1


@pytest.mark.measured
def test_layouts_on_two_kinds_are_ranked_as_measured(data_folder: Path) -> None:
    rows = read_mixed_rows(data_folder)
    own = [row for row in rows if row.family == "amp-het_cluster"]
    figures = fitted_figures(rows)
    assert all(FITTED[name][1] < value < FITTED[name][2] for name, value in figures.items())
    assert rank_correlation(own, figures) > LEAST_RANK_CORRELATION
    sizes = [abs(predicted_s(row, figures) / row.iteration_s - 1) for row in own]
    mean = sum(sizes) / len(sizes)
    assert mean < MOST_MEAN_ERROR
    line = f"| `amp-het_cluster` | 12 V100 and 4 T4 | 12 | {rank_correlation(own, figures):.2f} | {100 * mean:.1f} % |"
    assert line in (ROOT / "docs" / "accuracy_transformers.md").read_text(encoding="utf-8"), "run make accuracy"


@pytest.mark.measured
def test_only_what_goes_between_two_stages_depends_on_the_tied_gradient(data_folder: Path) -> None:
    figures = {name: start for name, (start, _, _) in FITTED.items()}
    wide = replace(READING, software={**READING.software, "tied_gradient_bytes": 4.0})
    for row in read_mixed_rows(data_folder):
        is_longer = predicted_s(row, figures, wide) > predicted_s(row, figures)
        assert is_longer == (row.family.startswith("amp-") and row.pipeline > 1)


@pytest.mark.measured
def test_rows_are_read_as_the_notes_say(data_folder: Path) -> None:
    rows = read_mixed_rows(data_folder)
    first = next(row for row in rows if row.family == "amp-het_cluster")
    assert first.machines == ("V100", "V100", "V100", "T4")
    assert first.layers == (3, 4, 3, 3, 3, 3, 3, 2)
    assert all(sum(row.layers) == row.transformer.num_layers for row in rows)
    assert all(len(row.machines) * row.devices_per_machine == row.tensor * row.pipeline * row.data for row in rows)
    numbers = Counter(row.family for row in rows)
    assert numbers == {"amp-het_cluster": 12, "amp-homogeneous": 14, "sailor-gh200": 8, "sailor-het": 3}
