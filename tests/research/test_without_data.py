"""What every command of research says where the measured data are not there."""

from importlib import import_module
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("research.fused_fit", "PLANNER_DATA"),
        ("research.kernel_fit", "PLANNER_DATA"),
        ("research.memory_fit", "PLANNER_DATA"),
        ("research.nanotron", "no measured data"),
        ("research.step_fit", "PLANNER_DATA"),
        ("research.transformer_fit.__main__", "PLANNER_DATA"),
        ("research.transformer_fit.mixed", "no measured data"),
        ("research.transformer_memory", "no measured data"),
    ],
)
def test_a_command_says_what_is_missing(
    module: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert import_module(module).main(["--data", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err
