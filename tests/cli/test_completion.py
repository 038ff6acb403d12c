"""What shells are told of a line that is being typed: values, not flags alone, and only such as are taken."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pytest import CaptureFixture, MonkeyPatch

from planner.cli.run import run


def offered(words: str, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]) -> list[str]:
    """What bash is told of a line; its last word is the one that is being typed."""
    monkeypatch.setenv("_PLANNER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words.replace(" ", "\n"))
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    with pytest.raises(SystemExit):
        run([])
    monkeypatch.delenv("_PLANNER_COMPLETE")
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("planner plan --dnn res", {"resnet50", "resnext50-32x4d"}),
        ("planner procure --dnn llama3.1-8", {"llama3.1-8b"}),
        ("planner plan --cluster osf", {"osf-testbed"}),
        ("planner plan --machines 4x8xh100-s", {"4x8xh100-sxm"}),
        ("planner plan --machines 4xdgx-h", {"4xdgx-h100"}),
        ("planner plan --machines 8x4xa100-sxm4-80gb,2x8xrtx-20", {"8x4xa100-sxm4-80gb,2x8xrtx-2080-ti"}),
        ("planner plan --inside nvlink-", {"nvlink-3", "nvlink-5"}),
        ("planner plan --precision bf", {"bf16"}),
        ("planner plan --optimizer ada", {"adam", "adafactor"}),
        ("planner plan --objective e", {"epoch_time"}),
        ("planner procure --objective ", {"cost", "time", "energy"}),
        ("planner procure --terms spot,on", {"spot,on-demand"}),
        ("planner plan --families all_reduce,p", {"all_reduce,pipeline", "all_reduce,parameter_server"}),
        ("planner export plan.json --to tor", {"torchtitan"}),
        ("planner export plan.json --to slurm --program meg", {"megatron"}),
        ("planner case osf-t", {"osf-table-2"}),
        ("planner show devices h100-", {"h100-sxm"}),
        ("planner show dnn vgg1", {"vgg16"}),
        ("planner show machines hgx-h2", {"hgx-h200"}),
    ],
)
def test_a_shell_is_told_the_values_that_begin_as_typed(
    line: str, some: set[str], monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    found = offered(line, monkeypatch, capsys)
    assert some <= set(found)
    assert len(found) == len(set(found))
    assert all(one.startswith(line.rpartition(" ")[2]) for one in found)


def test_the_script_for_zsh_begins_as_compinit_asks(monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]) -> None:
    monkeypatch.setenv("_PLANNER_COMPLETE", "source_zsh")
    assert run([]) == 0
    assert capsys.readouterr().out.startswith("#compdef planner\n")


def test_the_script_for_zsh_may_lose_its_reader() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "_PLANNER_COMPLETE": "source_zsh"}
    command = [sys.executable, "-m", "planner"]
    found = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=environment, check=False, timeout=60)
    os.close(writing)
    assert (found.returncode, found.stderr) == (0, b"")


def test_where_a_file_may_stand_the_shell_is_left_to_name_it(
    monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    for line in ("planner plan ", "planner plan --dnn ./mo", "planner show prices ", "planner procure --prices "):
        assert offered(line, monkeypatch, capsys) == []


@pytest.mark.parametrize(
    "line", ["planner plan --machines 2x", "planner plan --machines 2x2x", "planner plan --machines "]
)
def test_all_machines_and_devices_that_are_offered_are_taken(
    line: str, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str], tmp_path: Path
) -> None:
    from planner.cli.question import _machines

    found = offered(line, monkeypatch, capsys)
    assert len(found) > 40
    for one in found:
        assert json.dumps(_machines(one)), one


@pytest.mark.parametrize(("flag", "key"), [("--optimizer", "optimizer"), ("--precision", "dtype")])
def test_all_words_that_are_offered_are_words_of_a_question(
    flag: str, key: str, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    from planner.question.spec import Spec

    for one in offered(f"planner plan {flag} ", monkeypatch, capsys):
        asked = {"dnn": {"zoo": "llama2-7b", key: one}, "cluster": {"preset": "osf-testbed"}}
        assert getattr(Spec.model_validate(asked).dnn, key)
