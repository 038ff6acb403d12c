"""Completion in shells, by the scripts that docs/install.md says how to write: each is asked what it offers."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What a shell asks, and an empty line that it must not take for an answer.
ASKS = {
    "bash": """{script}
COMP_WORDS=(planner prices im); COMP_CWORD=2; _planner_completion planner; printf '%s\\n' "${{COMPREPLY[@]}}" """,
    "zsh": """compdef() {{ :; }}; _arguments() {{ printf '%s\\n' "$@"; }}
{script}
words=(planner prices im); CURRENT=3; _planner_completion""",
    "fish": """{script}
complete --do-complete 'planner prices im' """,
}


@pytest.mark.parametrize("shell", ASKS)
def test_a_shell_completes_by_the_script_that_it_is_given(shell: str, tmp_path: Path) -> None:
    (command,) = re.findall(rf"`(_PLANNER_COMPLETE=source_{shell} planner) > ", (ROOT / "docs/install.md").read_text())
    setting, program = command.split()
    assert program == "planner"
    planner = tmp_path / "planner"
    planner.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m planner "$@"\n')
    planner.chmod(0o755)
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    name, _, value = setting.partition("=")
    script = subprocess.run(["planner"], env={**path, name: value}, capture_output=True, text=True, check=True).stdout
    assert "_PLANNER_COMPLETE=complete_" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    asked = ASKS[shell].format(script=script)
    done = subprocess.run([shell, "-c", asked], env=path, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "import" in done.stdout, done
    assert "plan.json" not in done.stdout


def test_zsh_loads_the_script_from_its_folder_of_functions_and_answers_the_first_tab(tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    planner = tmp_path / "planner"
    planner.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m planner "$@"\n')
    planner.chmod(0o755)
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    asked = {**path, "_PLANNER_COMPLETE": "source_zsh"}
    (tmp_path / "functions").mkdir()
    with (tmp_path / "functions/_planner").open("w") as file:
        subprocess.run(["planner"], env=asked, stdout=file, check=True)
    lines = f"""fpath=({tmp_path}/functions $fpath)
autoload -Uz compinit; compinit -u -D
_arguments() {{ printf '%s\\n' "$@"; }}
words=(planner prices im); CURRENT=3; $_comps[planner]"""
    done = subprocess.run(["zsh", "-f", "-c", lines], env=path, capture_output=True, text=True, check=True)
    assert "import" in done.stdout, done
