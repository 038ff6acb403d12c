"""What changed inputs broke once, each as small as it can be; the words that are said now."""

import json
import sqlite3
import zlib
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import fuzz_seeds
import pytest
import sweeps
from answers import summary_text

import planner
from planner.answer.plan_file import read_plan
from planner.calibration.benchmarks import read_nccl
from planner.case.run import run_folder
from planner.errors import Fault, SpecError
from planner.network_import import import_file
from planner.question.source import read_source
from planner.sweep.question import load_sweep
from planner.sweep.report import export, summary_of
from planner.sweep.store import Store
from planner.units import Dimension, parse

CLUSTER = {"machines": [{"count": 2, "device": "v100", "network": "10 Gbit/s"}]}
PLAIN = {"dnn": {"zoo": "alexnet", "batch_per_device": 8}, "cluster": CLUSTER}
GRAPH = {"nodes": [{"name": "a", "device": "v100"}], "links": [{"ends": ["a", "b"], "bandwidth": "1 GB/s"}]}
LAYERS = [{"name": "a", "multiply_adds": 1000, "inputs": ["b"]}]
ROW = "compute_time=1.0, backward_compute_time=1.0, activation_size=4.0, parameter_size=4.0"


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({**PLAIN, "dnn": {"zoo": "alexnet", "batch_per_device": 10**400}}, "is too large. Write a whole number of at most"),
        ({**PLAIN, "calibration": {"utilisation": 10**400}}, "is beyond all reason"),
        ({**PLAIN, "": 1}, "'': unknown key ''"),
        ({**PLAIN, "cluster": GRAPH}, "a link ends at 'b', which does not exist. Name one of the nodes, or add it"),
        ({**PLAIN, "dnn": {"layers": LAYERS, "batch_per_device": 8}}, "layer 'a' reads 'b', which does not exist. Name a layer, or add it"),
        ({**PLAIN, "clus\u2028ter\x1b[31m": 1}, r"clus\\u2028ter\\x1b\[31m: unknown key"),
        ({**PLAIN, "<script>": 1}, "<script>: unknown key '<script>'"),
        ({**PLAIN, "dnn": {"zoo": "alexnet", "batch_per_device": 8, "<x>": 1}}, "dnn.<x>: unknown key '<x>'"),
        ({**PLAIN, "x" * 70_000: 1}, r"xxx \.\.\. xxx"),
        ({**PLAIN, "calibration": {"algorithms": [0] * 3000}}, r"\.\.\. and 2950 more faults"),
    ],
)  # fmt: skip
def test_a_question_is_refused_in_words_that_can_be_read(question: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words) as error:
        planner.load(question)
    text = str(error.value)
    assert len(text) < 40_000
    assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_all_faults_are_kept_where_only_some_are_told() -> None:
    error = SpecError.of(Fault(field=f"f{number}", problem="p" * 900) for number in range(200))
    assert len(error.faults) == 200
    lines = str(error).splitlines()
    assert len(str(error)) < 31_000
    assert lines[-1] == f"... and {200 - (len(lines) - 1)} more faults."


@pytest.mark.parametrize(
    "text", ["9" * 5000 + " s", "9" * 5000, "1" + " " * 5000, "1 " + "x " * 5000, " " * 5000 + "1 s"]
)
def test_a_long_text_is_no_quantity_and_takes_no_time_to_refuse(text: str) -> None:
    """Digits that two parts of a pattern could share took a time that grew with their square: seconds for a few thousand."""
    with pytest.raises(ValueError, match=r"a text of .* letters, .* is not a time"):
        parse(text, Dimension.TIME)


def test_an_anchor_may_be_set_anew_without_a_warning(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(
        "x: &a 1\ny: &a 8\ndnn: {zoo: alexnet, batch_per_device: *a}\ncluster: {preset: osf-testbed}\n"
    )
    assert read_source(tmp_path / "spec.yaml").data["dnn"]["batch_per_device"] == 8


@pytest.mark.parametrize("text", [" 1 s ", "1.s", ".5s", "1e3 s", "+2 s\n", "1\ts"])
def test_quantities_are_read_as_before(text: str) -> None:
    assert parse(text, Dimension.TIME) > 0


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("multiply_add"),
        lambda data: data.update(multiply_add=["text"]),
        lambda data: data.update(multiply_add=[1.5]),
        lambda data: data["multiply_add"][0].pop("seconds"),
        lambda data: data["interference"][0].pop("factor"),
        lambda data: data.update(interference=3),
    ],
)
def test_a_calibration_of_this_machine_that_is_not_whole_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    data = json.loads(json.dumps(fuzz_seeds.calibrations()[0]))
    change(data)
    (tmp_path / "calibration.json").write_text(json.dumps(data))
    (tmp_path / "spec.json").write_text(json.dumps({**PLAIN, "calibration": "calibration.json"}))
    with pytest.raises(SpecError, match=r"calibration\.json:1:2: schema: this is no whole measurement.*Measure again"):
        planner.load(tmp_path / "spec.json")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("net.trace.txt", "Id Name Forward Backward Comm. Size\n0 data 1e300 1 0 4\n1 conv1 1 1e300 0 4\n", "beyond all reason; check the units. Mend the trace"),
        ("net.csv", "name,forward_s,backward_s\na,1e300,1\n", r"check the units. Mend the table"),
        ("net.graph.txt", f"node1 -- Linear(1) -- forward_{ROW}\n\tnode1 -- node1\n", r"form a cycle: node1 -> node1; remove one of these edges"),
    ],
)  # fmt: skip
def test_an_impossible_profile_is_refused_with_its_mend(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError, match=words):
        import_file(tmp_path / name, batch_size=4)


def test_output_of_nccl_tests_on_one_rank_is_refused() -> None:
    text = fuzz_seeds.calibration_tables()["nccl.txt"]
    alone = "\n".join(line for line in text.splitlines() if "Rank  1" not in line)
    with pytest.raises(SpecError, match="devices"):
        read_nccl(Path("all_reduce.txt"), alone)


def test_an_unknown_unit_in_a_case_is_refused_with_its_mend(tmp_path: Path) -> None:
    files = next(one for one in fuzz_seeds.case_files() if "scaling factor" in one["published.csv"])
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    lines = files["published.csv"].splitlines()
    cells = lines[1].split(",")
    cells[1] = "furlong"
    (tmp_path / "published.csv").write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]))
    with pytest.raises(SpecError, match=r"'furlong' is no unit of a bare number.*Mend the unit"):
        run_folder(tmp_path)


def test_a_plan_with_many_faults_says_how_many_more_there_are(tmp_path: Path) -> None:
    question = {**PLAIN, "families": ["all_reduce"], "fix": {"num_devices": 2}}

    document = json.loads(json.dumps(planner.plan(planner.load(question)).to_dict()))
    with pytest.raises(SpecError, match=r"and 2995 more such faults\. Give a file that") as error:
        read_plan({**document, "alternatives": [0] * 3000})
    assert all(one.mend for one in error.value.faults)


def test_a_range_of_a_sweep_to_a_number_beyond_all_floats_is_refused() -> None:
    with pytest.raises(SpecError, match=r"is no number\. Write e\.g\. 4"):
        load_sweep(
            {**PLAIN, "sweep": {"vary": {"dnn.batch_per_device": {"from": 1, "to": 10**400, "step": 1}}}},
            time_limit_s=1.0,
        )


def test_a_sweep_with_keys_that_are_no_text_is_refused_with_their_places(tmp_path: Path) -> None:
    text = "dnn: {zoo: alexnet, 1: 2, batch_per_device: 8}\ncluster: {preset: osf-testbed}\nsweep: {vary: {dnn.batch_per_device: [1, 2]}}\n"
    (tmp_path / "spec.yaml").write_text(text)
    with pytest.raises(SpecError, match=r"spec\.yaml:1:\d+: dnn\.1: keys must be text\. Put the key in quotes"):
        load_sweep(tmp_path / "spec.yaml", time_limit_s=1.0)


# -- stores ----------------------------------------------------------------------------------------------------------

_ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS key, x AS wall_s FROM c"


def told(folder: Path, statement: str, values: tuple[Any, ...] = ()) -> None:
    """Change a store, and tell what it holds in every way."""
    asked, data = fuzz_seeds.store()
    (folder / "spec.json").write_text(json.dumps(asked))
    (folder / "store.sqlite").write_bytes(data)
    with sqlite3.connect(folder / "store.sqlite") as db:
        for one in statement.split(";\n"):
            db.execute(one, values if "?" in one else ())
    db.close()
    sweep = load_sweep(folder / "spec.json", time_limit_s=60.0)
    with Store(folder / "store.sqlite") as store:
        summary_text(summary_of(sweep, store), sweep.grid)
        export(sweep, store, folder / "rows.json")
        for row in store.rows(sweep.identity):
            store.document(row.answer.key)
        store.begin(sweep, date(2026, 1, 1))


@pytest.mark.parametrize(
    ("statement", "values", "words"),
    [
        ("UPDATE members SET position = ? WHERE position = 0", ("x",), r"damaged \(the row at position x: position\)"),
        ("UPDATE timings SET wall_s = ?", ("long",), "wall_s"),
        ("UPDATE results SET objective = ?", (b"12",), "objective"),
        ("UPDATE results SET time_s = ?", (float("inf"),), "time_s"),
        ("UPDATE results SET headline = ?", (b"\xff",), "headline"),
        ("UPDATE results SET num_devices = ?", ("many",), "num_devices"),
        ("UPDATE results SET outcome = ?", ("x" * 1000,), r"damaged \(the outcome 'x{79}\)"),
        ("UPDATE results SET document = ?", ("text",), "the answer"),
        ("UPDATE results SET document = ?", (zlib.compress(b"[" * 100_000),), "the answer"),
        ("UPDATE sweeps SET today = ?", ("yesterday",), "the day of the sweep's first start"),
        ("UPDATE sweeps SET today = ?", (5.5,), "the day of the sweep's first start"),
        ("INSERT INTO owners VALUES ('a', 'b', 1, 'c', ?)", (b"now",), "the owners"),
        (f"DROP TABLE timings;\nCREATE VIEW timings AS {_ENDLESS}", (), "its table timings cannot be this program's"),
        ("ALTER TABLE results DROP COLUMN family", (), "its table results cannot be this program's"),
        ("CREATE TRIGGER t BEFORE INSERT ON owners BEGIN SELECT RAISE(ABORT, 'no'); END", (), r"it has triggers \(t\)"),
        ("PRAGMA user_version = -1", (), "its format is -1, which no version of this program wrote"),
        ("PRAGMA user_version = 2", (), "a newer version of this program wrote this store"),
    ],
)  # fmt: skip
def test_a_store_that_holds_what_nobody_wrote_is_refused_by_what_it_is(
    tmp_path: Path, statement: str, values: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        told(tmp_path, statement, values)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE results SET objective = 1e308 WHERE rowid = 1;\nUPDATE results SET objective = 1e-320 WHERE rowid = 2",
        "CREATE INDEX mine ON results (family)",
        "CREATE TABLE notes (text)",
        "DELETE FROM timings",
    ],
)
def test_a_store_with_odd_but_possible_figures_or_tables_of_its_user_is_told(tmp_path: Path, statement: str) -> None:
    told(tmp_path, statement)


def test_a_name_in_a_store_that_is_no_text_is_refused(tmp_path: Path) -> None:
    _, data = fuzz_seeds.store()
    (tmp_path / "store.sqlite").write_bytes(data.replace(b"CREATE TABLE claims", b"CREATE TABLE cl\xe3\x28ms"))
    with pytest.raises(SpecError, match="damaged"), Store(tmp_path / "store.sqlite"):
        pass


def test_the_store_of_the_seeds_is_right(tmp_path: Path) -> None:
    assert date(2026, 1, 1) == sweeps.TODAY
    told(tmp_path, "SELECT 1")
