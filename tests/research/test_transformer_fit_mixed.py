"""The report on steps measured on several kinds of machines."""

from pathlib import Path

import pytest

from research.transformer_fit.mixed import (
    FITTED,
    fitted_figures,
    main,
    predicted_s,
    rank_correlation,
    read_mixed_rows,
)

LEAST_RANK_CORRELATION = 0.85  # what is aimed at for rows on several kinds, to which nothing is fitted


@pytest.mark.measured
def test_layouts_on_two_kinds_are_ranked_as_measured(data_folder: Path) -> None:
    rows = read_mixed_rows(data_folder)
    own = [row for row in rows if row.family == "amp-het_cluster"]
    figures = fitted_figures(rows)
    assert all(FITTED[name][1] < value < FITTED[name][2] for name, value in figures.items())
    assert rank_correlation(own, figures) > LEAST_RANK_CORRELATION
    ratios = [predicted_s(row, figures) / row.iteration_s - 1 for row in own]
    assert sum(abs(one) for one in ratios) / len(ratios) < 0.15


@pytest.mark.measured
def test_rows_are_read_as_the_notes_say(data_folder: Path) -> None:
    rows = read_mixed_rows(data_folder)
    first = next(row for row in rows if row.family == "amp-het_cluster")
    assert first.machines == ("V100", "V100", "V100", "T4")
    assert first.layers == (3, 4, 3, 3, 3, 3, 3, 2)
    assert all(sum(row.layers) == row.transformer.num_layers for row in rows)
    assert all(len(row.machines) * row.devices_per_machine == row.tensor * row.pipeline * row.data for row in rows)
    assert {row.family for row in rows} == {"amp-het_cluster", "amp-homogeneous", "sailor-het"}


def test_without_data_the_report_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path)]) == 2
    assert "no measured data" in capsys.readouterr().err
