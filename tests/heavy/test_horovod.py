"""The export for Horovod, as horovodrun's own parser reads it; it is pure Python and needs no built Horovod."""

import os
import shlex
import subprocess
import sys
import tarfile
import types
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exported import TELLS, planned, run_shell, written

import planner

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning")
_VERSION = "0.28.1"


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """horovod.runner.launch and its config_parser, from the source distribution of the last release."""
    for name in ("yaml", "cloudpickle", "psutil"):
        pytest.importorskip(name, reason=f"horovod.runner needs {name}")
    folder = tmp_path_factory.mktemp("horovod")
    archive = Path(os.environ.get("HOROVOD_SDIST", folder / f"horovod-{_VERSION}.tar.gz"))
    if not archive.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        done = subprocess.run(
            [*command, "--dest", str(folder), f"horovod=={_VERSION}"], capture_output=True, text=True, check=False
        )
        if done.returncode or not archive.exists():
            pytest.skip(f"horovod {_VERSION} cannot be had here: {done.stderr.strip()[-200:]}")
    with tarfile.open(archive) as found:
        members = [one for one in found.getmembers() if f"horovod-{_VERSION}/horovod/" in one.name]
        found.extractall(folder, members=members, filter="data")
    sys.path.insert(0, str(folder / f"horovod-{_VERSION}"))
    try:
        # What horovod/__init__.py does beyond its version asks for a built library.
        package = types.ModuleType("horovod")
        package.__path__ = [str(folder / f"horovod-{_VERSION}" / "horovod")]
        package.__version__ = _VERSION  # type: ignore[attr-defined]
        sys.modules["horovod"] = package
        from horovod.runner import launch  # type: ignore[import-not-found,unused-ignore]
        from horovod.runner.common.util import config_parser  # type: ignore[import-not-found,unused-ignore]

        yield launch, config_parser
    finally:
        sys.path.pop(0)
        for name in [name for name in sys.modules if name.split(".")[0] == "horovod"]:
            del sys.modules[name]


def parsed(launch: Any, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> Namespace:
    monkeypatch.setattr(sys, "argv", ["horovodrun", *words])
    found: Namespace = launch.parse_args()
    return found


def words_of(folder: Path, name: str, **settings: str) -> tuple[list[str], dict[str, str]]:
    """The words and variables that the script gives to horovodrun."""
    written(folder, planner.export(planned(name), "horovod", **settings).files)
    lines = run_shell(
        folder, "launch.sh", {"horovodrun": "env | grep ^HOROVOD_; printf '%q ' \"$@\""}, HOSTS="a:4,b:4,c:2,d:2,e:2"
    )
    return shlex.split(lines[-1]), dict(line.split("=", 1) for line in lines[:-1])


@pytest.mark.parametrize(("name", "number"), [("alike", 32), ("mixed", 14)])
def test_horovodrun_reads_the_number_of_processes_the_hosts_and_the_program(
    launcher: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    words, variables = words_of(tmp_path, name, script="train.py --name 'my net'")
    found = parsed(launcher[0], monkeypatch, words)
    assert found.num_proc == number
    assert found.hosts == "a:4,b:4,c:2,d:2,e:2"
    assert found.command == ["python", "train.py", "--name", "my net"]
    assert found.autotune is False
    environment = dict(variables)
    launcher[1].set_env_from_args(environment, found)
    # What the environment says stays as it was: the words set none of it.
    assert environment["HOROVOD_FUSION_THRESHOLD"] == variables["HOROVOD_FUSION_THRESHOLD"]
    assert environment["HOROVOD_CYCLE_TIME"] == variables["HOROVOD_CYCLE_TIME"]
    assert "HOROVOD_AUTOTUNE" not in environment


def test_horovods_own_options_give_variables_of_the_same_names(
    launcher: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, variables = words_of(tmp_path, "alike")
    words = [
        "-np",
        "2",
        "--fusion-threshold-mb",
        "64",
        "--cycle-time-ms",
        "3.5",
        "--hierarchical-allreduce",
        "python",
        "x",
    ]
    environment: dict[str, str] = {}
    launcher[1].set_env_from_args(environment, parsed(launcher[0], monkeypatch, words))
    assert environment["HOROVOD_FUSION_THRESHOLD"] == str(64 * 2**20)
    assert environment["HOROVOD_CYCLE_TIME"] == "3.5"
    assert environment["HOROVOD_HIERARCHICAL_ALLREDUCE"] == "1"
    assert {"HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME"} <= variables.keys() & environment.keys()


def test_a_word_that_horovodrun_does_not_know_is_refused(
    launcher: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, _ = words_of(tmp_path, "alike")
    with pytest.raises(SystemExit):
        parsed(launcher[0], monkeypatch, ["--auto-tune-not", *words])
    assert TELLS  # the made-up launcher above prints words as a shell quotes them


def test_horovods_source_fuses_as_is_assumed(launcher: tuple[Any, Any]) -> None:
    """The C++ that is not run here: what it says of cycle and threshold."""
    del launcher
    folder = Path(sys.modules["horovod"].__path__[0]) / "common"
    operations, controller = (folder / "operations.cc").read_text(), (folder / "controller.cc").read_text()
    assert "SetCycleTimeMs(1);" in operations
    assert "tensor_size + new_tensor_size <= TensorFusionThresholdBytes()" in controller
