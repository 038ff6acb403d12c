"""A server of commands and their inputs, made once for all tests here."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_commands import QUICK, write_inputs
from faults import Server

from planner.cli.run import run


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of what all commands read."""
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    assert run(["plan", str(folder / "q.yaml"), "--out", str(folder / "plan.json")]) == 0
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, inputs: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    lines = [writer.words(folder / f"{number}{writer.suffix}") for number, writer in enumerate(QUICK)]
    lines += [["sweep", "s.yaml", "--html", str(folder / "page.html")]]
    with Server(
        folder, [[str(inputs / word) if (inputs / word).is_file() else word for word in line] for line in lines]
    ) as made:
        yield made


@pytest.fixture
def fresh(tmp_path: Path, inputs: Path) -> Callable[[], Path]:
    """Make a new copy of the inputs."""
    number = iter(range(10**9))

    def copy() -> Path:
        return Path(shutil.copytree(inputs, tmp_path / str(next(number))))

    return copy
