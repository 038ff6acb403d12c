"""Rows of a sweep as CSV, JSON and Parquet, read back; the summary against numbers counted by hand."""

import csv
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from answers import summary_text
from hypothesis import given
from hypothesis import strategies as st
from sweeps import TODAY, asked

from planner.answer.documents import dump
from planner.errors import SpecError
from planner.sweep.answers import Answer, Outcome
from planner.sweep.engine import OneWorker, run
from planner.sweep.question import Sweep
from planner.sweep.report import (
    Row,
    SweepDocument,
    check_export,
    columns_of,
    export,
    pareto,
    summary_document,
    summary_of,
)
from planner.sweep.store import Store

BLOCK = {
    "vary": {
        "cluster.machines.0.network": ["10 Gbit/s", "100 Gbit/s"],
        "constraints.memory_per_device": ["16 GiB", "1 kB", "0 B"],
        "objective": ["epoch_time", None],
    },
    "zip": [{"dnn.batch_per_device": [8, 16], "calibration": [{"utilisation": 0.25}, {"utilisation": 0.5}]}],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sweep, Store]]:
    """An answered sweep with plans, impossible questions and wrong ones."""
    sweep = asked(BLOCK)
    with Store(tmp_path_factory.mktemp("sweep") / "s.sqlite") as store:
        run(sweep, store, OneWorker(), today=TODAY)
        yield sweep, store


def cells(sweep: Sweep, store: Store) -> list[dict[str, Any]]:
    names = columns_of(sweep.grid)
    return [
        dict(
            zip(
                names,
                Row(position=one.position, values=sweep.grid.values(one.position), answer=one.answer).cells(),
                strict=True,
            )
        )
        for one in store.rows(sweep.identity)
    ]


def test_json_gives_back_every_cell(made: tuple[Sweep, Store], tmp_path: Path) -> None:
    sweep, store = made
    assert export(sweep, store, tmp_path / "rows.json") == len(sweep.grid) == 24
    found = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert found["rows"] == cells(sweep, store)
    assert found["fields"] == list(sweep.grid.fields)


def test_csv_gives_back_every_cell_numbers_to_the_last_bit(made: tuple[Sweep, Store], tmp_path: Path) -> None:
    sweep, store = made
    export(sweep, store, tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    for row, known in zip(found, cells(sweep, store), strict=True):
        for name, cell in known.items():
            if cell is None:
                assert row[name] == ""
            elif isinstance(cell, float):
                assert float(row[name]) == cell
            elif isinstance(cell, dict):
                assert json.loads(row[name]) == cell
            else:
                assert row[name] == str(cell)


def test_parquet_gives_back_every_cell_with_its_type(made: tuple[Sweep, Store], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    sweep, store = made
    export(sweep, store, tmp_path / "rows.parquet")
    found = parquet.read_table(tmp_path / "rows.parquet")
    assert str(found.schema.field("dnn.batch_per_device").type) == "int64"
    assert str(found.schema.field("objective").type) == "double"
    for row, known in zip(found.to_pylist(), cells(sweep, store), strict=True):
        assert {**row, "calibration": json.loads(row["calibration"])} == known


def test_a_field_that_bears_the_name_of_a_column_has_another_one(made: tuple[Sweep, Store]) -> None:
    names = columns_of(made[0].grid)
    assert "question.objective" in names
    assert len(set(names)) == len(names)


def test_an_export_that_cannot_be_is_refused_before_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match=r"ends in one of .csv, .json, .parquet"):
        check_export(tmp_path / "rows.xlsx")
    with pytest.raises(SpecError, match="there is no folder"):
        check_export(tmp_path / "missing/rows.csv")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SpecError, match=r"pip install 'training-planner\[parquet\]'"):
        check_export(tmp_path / "rows.parquet")


def test_an_export_that_fails_leaves_no_file_behind(made: tuple[Sweep, Store], tmp_path: Path) -> None:
    (tmp_path / "rows.csv").mkdir()
    with pytest.raises(SpecError, match="cannot be written"):
        export(*made, tmp_path / "rows.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_the_summary_counts_and_ranks_what_the_rows_hold(made: tuple[Sweep, Store]) -> None:
    sweep, store = made
    found, rows = summary_of(sweep, store), cells(sweep, store)
    plans = [row for row in rows if row["outcome"] == "optimal"]
    assert found.counts == {Outcome.OPTIMAL: 8, Outcome.INFEASIBLE: 8, Outcome.WRONG: 8}
    assert [row.answer.objective for row in found.best] == sorted(row["objective"] for row in plans)[:10]
    assert {one.outcome: one.number for one in found.reasons} == {Outcome.INFEASIBLE: 8, Outcome.WRONG: 8}


def test_an_effect_is_the_mean_ratio_over_pairs_that_differ_in_one_field(made: tuple[Sweep, Store]) -> None:
    sweep, store = made
    rows = {row["position"]: row["objective"] for row in cells(sweep, store) if row["outcome"] == "optimal"}
    half = len(sweep.grid) // 2  # the network is the first axis
    ratios = [rows[at + half] / rows[at] for at in rows if at < half]
    names, effects = summary_of(sweep, store).effects[0]
    assert names == ("cluster.machines.0.network",)
    assert effects[0].ratio == 1
    assert effects[1].num_pairs == len(ratios) == 4
    assert effects[1].ratio == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
    assert (effects[1].ratio or 1) < 1


def test_where_the_first_value_has_no_plan_the_next_one_that_has_is_compared_with(tmp_path: Path) -> None:
    sweep = asked({"vary": {"constraints.memory_per_device": ["1 kB", "16 GiB", "15 GiB"]}})
    with Store(tmp_path / "s") as store:
        run(sweep, store, OneWorker(), today=TODAY)
        ((_, effects),) = summary_of(sweep, store).effects
    assert [(one.ratio, one.num_pairs, one.num_answered) for one in effects] == [(None, 0, 0), (1.0, 1, 1), (1.0, 1, 1)]


def test_the_summary_reads_and_is_a_document(made: tuple[Sweep, Store]) -> None:
    sweep, store = made
    found = summary_of(sweep, store)
    text = summary_text(found, sweep.grid)
    assert text.startswith("24 questions: 8 proven optimal, 8 without any plan, proven, 8 wrong\n")
    assert "What each field does to epoch_time_s" in text
    assert "8 x without any plan, proven, the first is #" in text
    document = json.loads(dump(summary_document(found, sweep.grid, identity=sweep.identity, is_complete=True)))
    assert document["schema"] == "planner.sweep/1"
    jsonschema.validate(document, SweepDocument.model_json_schema(by_alias=True))
    assert document["counts"] == {"optimal": 8, "infeasible": 8, "wrong": 8}


POINTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30)


@given(POINTS)
def test_the_trade_off_is_what_none_beats(points: list[tuple[int, int]]) -> None:
    rows = [
        Row(
            position=at,
            values=(),
            answer=Answer(key=str(at), outcome=Outcome.OPTIMAL, document=b"", time_s=float(a), cost_usd=float(b)),
        )
        for at, (a, b) in enumerate(points)
    ]
    found = [(row.answer.time_s, row.answer.cost_usd) for row in pareto(rows, ("time_s", "cost_usd"))]
    beaten = [any((a <= p and b <= q) and (a, b) != (p, q) for a, b in points) for p, q in points]
    assert found == sorted({point for point, is_beaten in zip(points, beaten, strict=True) if not is_beaten})
