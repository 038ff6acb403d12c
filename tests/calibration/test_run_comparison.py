import json
from pathlib import Path

import pytest
from run_files import run_document, write_run

from planner.answer.schemas import MODELS
from planner.calibration.runs import compare, run_files
from planner.errors import SpecError


def write_choice(folder: Path) -> None:
    """Write three runs of one session: small buckets, one large bucket that measured best, and another network."""
    write_run(folder, run_document(median_s=0.80), "small.json")
    whole = run_document(median_s=0.72)
    whole["job_id"] = "made-up-cap25"
    whole["inputs"]["allreduce"]["buckets_used"] = [
        {"index": 0, "size_bytes": 5_000_040, "tensors": ["last.w", "last.b", "first.w"]}
    ]
    write_run(folder, whole, "whole.json")
    other = run_document(median_s=0.1)
    other["job_id"], other["inputs"]["model"] = "other", {"table": "other"}
    write_run(folder, other, "other.json")


def test_errors_are_predicted_over_measured_less_one(tmp_path: Path) -> None:
    found = compare([write_run(tmp_path, run_document(median_s=0.35))])
    (row,), (family,) = found.rows, found.families
    error = row.predicted_s / 0.35 - 1
    assert row.error == pytest.approx(error)
    assert family.mean == family.largest == pytest.approx(abs(error))
    assert family.worst == "made-up-cap1"
    assert found.regrets == ()


def test_the_regret_is_of_alternatives_of_one_network_in_one_session(tmp_path: Path) -> None:
    write_choice(tmp_path)
    (regret,) = compare([tmp_path]).regrets
    assert set(regret.jobs) == {"made-up-cap1", "made-up-cap25"}
    assert (regret.chosen, regret.best) == ("made-up-cap1", "made-up-cap25")  # two buckets overlap, as predicted
    assert regret.regret == pytest.approx(0.80 / 0.72 - 1)


def test_a_run_without_results_is_predicted_and_counts_nowhere(tmp_path: Path) -> None:
    found = compare([write_run(tmp_path, run_document(median_s=None))])
    assert found.rows[0].measured_s is None and found.rows[0].error is None
    assert found.families == ()
    assert "made-up-cap1" in found.text()


def test_alternatives_that_were_not_measured_are_ranked_by_their_predictions(tmp_path: Path) -> None:
    write_choice(tmp_path)
    assert "not all measured" not in compare([tmp_path]).text()
    for name in ("small.json", "whole.json"):
        document = json.loads((tmp_path / name).read_text())
        del document["results"]
        write_run(tmp_path, document, name)
    found = compare([tmp_path])
    ranked = found.text().partition("alternatives not all measured, predicted fastest first\n")[2].splitlines()
    assert ranked[0] == f"2 runs of {found.rows[0].run.session}"
    assert [line.split()[-1] for line in ranked[1:]] == ["made-up-cap1", "made-up-cap25"]
    assert float(ranked[1].split()[0]) < float(ranked[2].split()[0])
    assert found.regrets == ()


def test_text_and_document_hold_every_run_family_and_choice(tmp_path: Path) -> None:
    write_choice(tmp_path)
    found = compare([tmp_path])
    document = json.loads(json.dumps(found.to_document(), allow_nan=False))
    MODELS["runs"].model_validate(document)
    assert document["schema"] == "planner.runs/1"
    assert [row["job"] for row in document["runs"]] == ["made-up-cap1", "made-up-cap25", "other"]
    assert document["families"][0]["count"] == 3
    assert document["regrets"][0]["best"] == "made-up-cap25"
    for part in ("made-up-cap25", "all-reduce, emulated compute", "regret 11.11%"):
        assert part in found.text()


def test_folders_give_their_runs_and_each_file_counts_once(tmp_path: Path) -> None:
    path = write_run(tmp_path, run_document())
    (tmp_path / "other.json").write_text("{}")
    assert run_files([tmp_path, path]) == (path,)


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no file of a run is in it"):
        compare([tmp_path])


def test_what_is_wrong_with_all_files_is_told_at_once(tmp_path: Path) -> None:
    paths = []
    for name in ("a.json", "b.json"):
        document = run_document()
        del document["inputs"]["network"]
        paths.append(write_run(tmp_path, document, name))
    with pytest.raises(SpecError, match=r"a\.json(.|\n)*b\.json"):
        compare(paths)
