"""Measured constants: their structure and sense, never their size."""

import json
import math

import jsonschema
import pytest
from pytest import CaptureFixture

from planner.answer.schemas import MODELS
from planner.calibration.canonical_loops import Calibration, available_cores, measure
from planner.cli.run import run
from planner.errors import ModelError
from planner.models.replica_segments import ByThreads, ByWorkingSet


@pytest.fixture(scope="module")
def short() -> Calibration:
    return measure(working_sets_bytes=(2**18, 2**12), num_repeats=1)


def test_every_constant_is_a_time(short: Calibration) -> None:
    seconds = [short.activation_s, short.error_s, *(one for _, one in short.multiply_add_s)]
    assert all(0 < one < math.inf for one in seconds)


def test_working_sets_and_threads_ascend(short: Calibration) -> None:
    assert [size for size, _ in short.multiply_add_s] == [2**12, 2**18]
    threads = [number for number, _ in short.interference]
    assert threads == sorted(set(threads))
    assert (threads[0], threads[-1]) == (1, available_cores())


def test_threads_never_speed_each_other_up(short: Calibration) -> None:
    assert short.interference[0] == (1, 1.0)
    assert all(factor >= 1 for _, factor in short.interference)


def test_the_model_takes_what_was_measured(short: Calibration) -> None:
    assert ByWorkingSet(short.multiply_add_s)(2**12, 1) == pytest.approx(short.multiply_add_s[0][1])
    assert ByThreads(short.interference)(1) == 1


def test_more_threads_than_cores_break_c2() -> None:
    with pytest.raises(ModelError, match=f"C2: 1 to {available_cores() + 1} threads; this machine has"):
        measure(num_threads=(available_cores() + 1,))


@pytest.mark.parametrize(("sizes", "repeats"), [((), 1), ((100,), 1), ((2**18,), 0)])
def test_nothing_to_measure_is_refused(sizes: tuple[int, ...], repeats: int) -> None:
    with pytest.raises(ModelError, match="give sets of at least 4096 bytes and 1 repeat"):
        measure(working_sets_bytes=sizes, num_repeats=repeats)


def test_calibrate_measures_and_keeps_its_schema(capsys: CaptureFixture[str]) -> None:
    assert run(["calibrate", "--measure", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, MODELS["calibration"].model_json_schema(by_alias=True))
    assert document["num_cores"] == available_cores()
    assert run(["calibrate", "--measure"]) == 0
    assert "a multiply-add" in capsys.readouterr().out


def test_calibrate_without_a_source_says_what_to_write(capsys: CaptureFixture[str]) -> None:
    assert run(["calibrate"]) == 2
    assert "planner calibrate --measure" in capsys.readouterr().err
