"""Nanotron's sweep, predicted: what is read, how layers are cut, and how far off the product is."""

from collections import Counter
from pathlib import Path
from statistics import fmean

import pytest

from research import ROOT
from research.nanotron import choices, layers_by_stage, predicted, section
from research.nanotron_runs import Run, read_runs

_PAGE = ROOT / "docs" / "accuracy_transformers.md"


def run_of(**changed: object) -> Run:
    fields = {"model": "8B", "nodes": 2, "tensor": 2, "pipeline": 1, "data": 8, "microbatch": 1, "zero": 1}
    return Run(**{**fields, "iteration_s": 10.0, "mfu": 0.4, "memory_bytes": 4e10, **changed})  # type: ignore[arg-type]  # fields by their names


@pytest.mark.parametrize(("model", "layers"), [("1B", 16), ("3B", 28), ("8B", 32), ("80B", 80)])
@pytest.mark.parametrize("stages", [2, 4, 8, 16, 32])
def test_stages_hold_all_layers_and_the_last_ones_fewest(model: str, layers: int, stages: int) -> None:
    found = layers_by_stage(model, stages)
    assert len(found) == stages
    assert sum(found) == layers
    assert found[-1] == min(found)


def test_a_stage_that_holds_the_head_alone_is_predicted_between_fuller_cuts() -> None:
    even, cut = predicted(
        [run_of(model="1B", pipeline=1, data=16, tensor=1), run_of(model="1B", pipeline=4, data=4)], "megatron-core"
    )
    assert 0.8 < cut.iteration_s / even.iteration_s < 2
    assert 0 < cut.memory_bytes < cut.limit_bytes


def test_repeats_of_a_layout_count_once_and_regret_is_of_the_first_choice() -> None:
    runs = [run_of(iteration_s=8.0), run_of(iteration_s=12.0), run_of(microbatch=2, iteration_s=9.0)]
    runs += [run_of(tensor=16, data=1, iteration_s=40.0), run_of(nodes=4, iteration_s=5.0)]
    ((name, choice),) = choices(predicted(runs, "megatron-core"))
    assert name == ("8B", 2)
    assert choice.num_layouts == 3
    assert choice.regret in (0.0, pytest.approx(10 / 9 - 1))


@pytest.mark.measured
def test_every_row_is_read(data_folder: Path) -> None:
    runs = read_runs(data_folder)
    assert Counter(run.iteration_s is None for run in runs) == {False: 867, True: 798}
    assert all(run.tensor * run.pipeline * run.data == 8 * run.nodes for run in runs)


@pytest.mark.measured
def test_runs_on_a_machine_are_predicted_and_ranked(data_folder: Path) -> None:
    found = predicted((run for run in read_runs(data_folder) if run.nodes == 1 and run.iteration_s), "nanotron")
    assert fmean(abs(one.error) for one in found if one.run.mfu >= 0.25) < 0.09
    by_model = {model: choice for (model, _), choice in choices(found)}
    assert by_model["1B"].regret < 0.02
    assert by_model["3B"].regret < 0.02
    assert not any(one.is_refused for one in found)
    first = min((one for one in found if one.run.model == "8B"), key=lambda one: one.iteration_s)
    assert first.run.memory_bytes > 70e9  # as the page says of it


@pytest.mark.long  # all rows of both programs; the test above has those of one machine
@pytest.mark.measured
def test_the_page_is_current(data_folder: Path) -> None:
    assert section(data_folder) in _PAGE.read_text(encoding="utf-8")
