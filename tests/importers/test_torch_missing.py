"""Without torch: what a user is told, and that nothing imports it early."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from planner.errors import SpecError
from planner.importers.torch_module import from_torch, read_factory

is_missing = pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")


@is_missing
def test_a_module_without_torch_is_refused_with_what_to_install() -> None:
    with pytest.raises(SpecError, match="torch is not installed") as caught:
        from_torch(object(), None)
    assert caught.value.faults[0].mend == "Run pip install 'training-planner[torch]'."


@is_missing
def test_no_code_is_run_without_torch(tmp_path: Path) -> None:
    (tmp_path / "would_run.py").write_text("raise SystemExit('ran')")
    with pytest.raises(SpecError, match="torch is not installed"):
        read_factory("would_run:make", tmp_path)


def test_importing_the_readers_does_not_import_torch() -> None:
    code = "import sys, planner.importers.torch_module, planner.importers.chrome_trace; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
