"""Factories of PyTorch modules, and the examples of the documentation."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from torch_nets import QUIET

from planner.errors import SpecError
from planner.importers.torch_module import from_torch, read_factory

torch: Any = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
nn: Any = torch.nn
pytestmark = QUIET


def python_blocks() -> list[str]:
    text = (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text(encoding="utf-8")
    return [block.split("```")[0] for block in text.split("```python\n")[1:]]


def test_the_factory_of_the_documentation_is_read(tmp_path: Path) -> None:
    (tmp_path / "documented_nets.py").write_text(python_blocks()[1])
    found = read_factory("documented_nets:encoder", tmp_path)
    assert found.dnn.num_trainable == 51_714_304
    assert not found.warnings


def write(folder: Path, text: str, name: str) -> str:
    (folder / f"{name}.py").write_text("import torch\n" + text)
    return name


def test_a_factory_returns_a_module_and_its_example(tmp_path: Path) -> None:
    text = "def make():\n    return torch.nn.Linear(4, 3), torch.zeros(2, 4)\n"
    text += "class Net(torch.nn.Linear):\n    example_input = torch.zeros(2, 4)\n"
    text += "    def __init__(self):\n        super().__init__(4, 3)\n"
    name = write(tmp_path, text, "factory_that_works")
    before = list(sys.path)
    assert read_factory(f"{name}:make", tmp_path).dnn.num_trainable == 15
    assert read_factory(f"{name}:Net", tmp_path).dnn.num_trainable == 15
    assert sys.path == before


@pytest.mark.parametrize(
    ("text", "named", "problem"),
    [
        ("", "nothing", "'nothing' is no name of a factory"),
        ("", "a b:c", "'a b:c' is no name of a factory"),
        ("", "no_such_package.models:make", "there is no module 'no_such_package'"),
        ("", "NAME:make", "has no 'make'"),
        ("make = 3", "NAME:make", "'make' is no function"),
        ("def make():\n    return 3", "NAME:make", "it returns a int, not a module with an example"),
        ("def make():\n    return torch.nn.Linear(1, 1)", "NAME:make", "it returns a Linear, not a module with"),
        ("def make():\n    return torch.nn.Linear(1, 1), None", "NAME:make", "a tuple of Linear, NoneType"),
        ("def make():\n    raise KeyError('colour')", "NAME:make", "NAME:make fails: KeyError: 'colour'"),
        ("def make():\n    raise SystemExit('bye')", "NAME:make", "NAME:make fails: SystemExit: bye"),
        ("1 / 0", "NAME:make", "NAME:make cannot be imported: ZeroDivisionError: division by zero"),
        ("import not_installed_here", "NAME:make", "cannot be imported: ModuleNotFoundError: No module named"),
        ("def make(:", "NAME:make", "cannot be imported: SyntaxError"),
    ],
)
def test_a_factory_that_does_not_work_is_told_by_its_last_line(
    tmp_path: Path, text: str, named: str, problem: str, request: pytest.FixtureRequest
) -> None:
    own = f"factory_{abs(hash(request.node.name)) % 10**9}"
    write(tmp_path, text, own)
    with pytest.raises(SpecError, match=problem.replace("NAME", own)) as caught:
        read_factory(named.replace("NAME", own), tmp_path)
    (fault,) = caught.value.faults
    assert fault.field == "dnn.torch"
    assert fault.mend
    assert math.isfinite(len(fault.value))


def test_what_a_factory_prints_stays_out_of_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "print('imported')\nclass Net(torch.nn.Linear):\n    def forward(self, x):\n        print('forward')\n"
    text += (
        "        return super().forward(x)\ndef make():\n    print('made')\n    return Net(4, 3), torch.zeros(2, 4)\n"
    )
    name = write(tmp_path, text, "factory_that_prints")
    assert read_factory(f"{name}:make", tmp_path).dnn.num_trainable == 15
    out, err = capsys.readouterr()
    assert out == ""
    assert {"imported", "made", "forward"} <= set(err.split())


def test_complex_numbers_are_outputs_with_gradients_and_are_warned_of() -> None:
    class Complex(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(8, 8, dtype=torch.cfloat))

        def forward(self, x: Any) -> Any:
            return x @ self.weight

    found = from_torch(Complex(), torch.zeros(2, 8, dtype=torch.cfloat))
    assert found.facts["backward_flop"] == found.facts["forward_flop"]
    assert any("complex parameters count as one number each" in one for one in found.warnings)
