"""``planner explain --html`` and ``planner compare --html``."""

import json
from pathlib import Path

import pytest
from answers import comparison_page
from pages import read
from pytest import CaptureFixture

import planner
from planner.cli.run import run

EVIL = "</script><script>alert(1)</script>"


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two plans of one network, on 10 and on 100 Gbit/s."""
    folder = tmp_path_factory.mktemp("plans")
    found = []
    for rate in (10, 100):
        path = folder / f"{rate}.json"
        asked = (
            "--dnn",
            "alexnet",
            "--machines",
            "4x2xrtx-2080-ti",
            "--network",
            f"{rate} Gbit/s",
            "--inside",
            "pcie-5-x16",
        )
        assert run(["plan", *asked, "--families", "all_reduce", "--out", str(path)]) == 0
        found.append(path)
    return found[0], found[1]


def test_an_explanation_is_written_as_the_page_of_its_plan(
    plans: tuple[Path, Path], tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    page = tmp_path / "explained.html"
    assert run(["explain", str(plans[0]), "--html", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = read(page.read_text(encoding="utf-8"))
    rows = found.tables["Each change alone, planned anew"][1:]
    assert [row[0] for row in rows] == [one["words"] for one in told["sensitivities"]]
    assert f"({told['objective']['value']:.6g} s)" in found.text
    assert "planner explain plan.json" in found.text


def test_a_comparison_tells_the_same_as_its_document(
    plans: tuple[Path, Path], tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    page = tmp_path / "compared.html"
    assert run(["compare", *map(str, plans), "--html", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = read(page.read_text(encoding="utf-8"))
    assert "100.json is better: an epoch takes" in found.text
    assert f"{told['saving']:.2%} less" in found.text
    rows = found.tables["The terms of both, the largest difference first"][1:]
    assert len(rows) == sum(any(one["seconds"]) for one in told["terms"]) + 1
    assert len(found.tables["What was asked, where it differs"]) == len(told["question"]) + 1
    assert len(found.plots) == 1
    assert [level for level, _ in found.headings].count(1) == 1


def test_a_comparison_of_a_plan_with_itself_and_of_hostile_names(plans: tuple[Path, Path]) -> None:
    same = planner.compare(plans[0], plans[0])
    page = comparison_page(same, (EVIL, EVIL), commands=[("planner", "compare", EVIL)])
    found = read(page)
    assert "Both take the same" in found.text
    assert "The same in both." in found.text
    assert "<script>alert" not in page
    assert EVIL in found.text


def test_a_page_never_takes_the_place_of_a_plan(plans: tuple[Path, Path], capsys: CaptureFixture[str]) -> None:
    before = plans[0].read_text()
    assert run(["compare", *map(str, plans), "--html", str(plans[1])]) == 2
    assert run(["explain", str(plans[0]), "--html", str(plans[0])]) == 2
    assert "--html" in capsys.readouterr().err
    assert plans[0].read_text() == before
