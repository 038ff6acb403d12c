import itertools
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from planner.channel import schedule
from planner.cost import Floats
from planner.errors import SpecError
from planner.importers.imported import MeasuredNetwork
from planner.importers.profiles import read_layer_trace
from planner.models.data_parallel import gradients_of
from planner.solvers.fusion import unfused

HEADER = "Id Name Forward Backward Comm. Size"


def write(folder: Path, *lines: str, name: str = "net.trace.txt") -> Path:
    path = folder / name
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def faults_of(path: Path) -> list[str]:
    """Return what is wrong with a file, a line each, the folder left out."""
    with pytest.raises(SpecError) as caught:
        read_layer_trace(path, batch_size=4)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.faults)
    assert all(line.startswith(str(path)) for line in lines)
    return [line.removeprefix(f"{path.parent}/") for line in lines]


# -- Table VI of the S-SGD paper ---------------------------------------------------------------------------------------


@pytest.fixture
def table_vi() -> MeasuredNetwork:
    with resources.as_file(resources.files("planner.data") / "examples" / "alexnet-k80.trace.txt") as path:
        return read_layer_trace(path, batch_size=1024)


@pytest.fixture
def communication_s() -> Floats:
    """The measured communication, which the importer leaves out."""
    text = (resources.files("planner.data") / "examples" / "alexnet-k80.trace.txt").read_text(encoding="utf-8")
    rows = [line.split() for line in text.splitlines() if line[0].isdigit()]
    return np.array([float(row[4]) for row in rows]) / 1e6


def test_table_vi_sums(table_vi: MeasuredNetwork, communication_s: Floats) -> None:
    profile = table_vi.profile
    assert 1024 * profile.forward_s.sum() == pytest.approx(13.470835, abs=5e-7)
    assert 1024 * profile.backward_s.sum() == pytest.approx(3.362144, abs=5e-7)
    assert communication_s.sum() == pytest.approx(2.649091, abs=5e-7)
    assert 4 * table_vi.dnn.num_trainable == 243_860_896
    assert profile.read_s == pytest.approx(1.2 / 1024)


def test_table_vi_is_a_chain_of_22_layers_and_8_gradients(table_vi: MeasuredNetwork) -> None:
    names = [layer.name for layer in table_vi.dnn.layers]
    assert (len(names), names[0], names[-1]) == (22, "data", "loss")
    assert list(table_vi.dnn.graph.edges) == list(itertools.pairwise(names))
    gradients = gradients_of(table_vi.dnn, table_vi.profile, gradient_bytes=4)
    assert gradients.names == ("fc8", "fc7", "fc6", "conv5", "conv4", "conv3", "conv2", "conv1")
    assert gradients.size_bytes[2] == 4 * (9216 * 4096 + 4096)  # restored: print has a digit less
    assert table_vi.dnn.name == "alexnet-k80"


def test_table_vi_hides_all_but_the_last_layers_communication(
    table_vi: MeasuredNetwork, communication_s: Floats
) -> None:
    gradients = gradients_of(table_vi.dnn, table_vi.profile, gradient_bytes=4)
    took_s = communication_s[communication_s > 0][::-1]
    ready_s = gradients.ready(1024)
    plan = schedule(unfused(8), ready_s, gradients.size_bytes, lambda _: took_s)
    assert plan.finish_s - 1024 * table_vi.profile.backward_s.sum() == pytest.approx(0.000123424)


# -- the format --------------------------------------------------------------------------------------------------------


def test_times_are_seconds_a_sample_and_communication_is_left_out(tmp_path: Path) -> None:
    rows = ["0 data 80 0 0 0", "1 conv1 8e1 160 999 400", "# a comment", "2 relu1 8 16 0 0"]
    blanks = read_layer_trace(write(tmp_path, HEADER, *rows), batch_size=8)
    commas = read_layer_trace(
        write(tmp_path, HEADER.replace(" ", ","), *(row.replace(" ", ", ") for row in rows)), batch_size=8
    )
    for found in (blanks, commas):
        assert [layer.kind for layer in found.dnn.layers] == ["input", "convolution", "activation"]
        assert found.profile.forward_s == pytest.approx(np.array([0, 1e-5, 1e-6]))
        assert found.profile.backward_s == pytest.approx(np.array([0, 2e-5, 2e-6]))
        assert found.profile.read_s == pytest.approx(1e-5)
        assert found.dnn.num_trainable == 100
        assert any("no activation sizes" in warning for warning in found.warnings)


def test_a_header_is_not_needed_nor_a_data_layer(tmp_path: Path) -> None:
    found = read_layer_trace(write(tmp_path, "1 fc1 2 4 1 8"), batch_size=2)
    assert found.profile.read_s is None
    assert found.profile.forward_s == pytest.approx(np.array([1e-6]))


def test_backward_times_near_zero_are_doubted(tmp_path: Path) -> None:
    found = read_layer_trace(write(tmp_path, "1 fc1 1000 1 1 8"), batch_size=1)
    assert any("backward times near zero beside their forward times: fc1" in warning for warning in found.warnings)


# -- what is wrong -----------------------------------------------------------------------------------------------------


def test_all_faults_are_found_in_one_pass(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        HEADER,
        "0 data 1 0 0",
        "1 conv1 fast 2 0 4",
        "2 conv2 1 -2 nan 4",
        "this is some line of garbage here",
        "3 fc 1 2 0 inf",
        "4 fc 1 2 0 4",
    )
    mend = "Write e.g. 288202."
    assert faults_of(path) == [
        "net.trace.txt:2: 5 columns instead of 6. Write Id Name Forward Backward Comm. Size.",
        f"net.trace.txt:3: Forward: 'fast' is not a number >= 0. {mend}",
        f"net.trace.txt:4: Backward: '-2' is not a number >= 0. {mend}",
        f"net.trace.txt:4: Comm.: 'nan' is not a number >= 0. {mend}",
        "net.trace.txt:5: 7 columns instead of 6. Write Id Name Forward Backward Comm. Size.",
        f"net.trace.txt:6: Size: 'inf' is not a number >= 0. {mend}",
        "net.trace.txt:6: layer 'fc' stands twice. Rename one.",
        "net.trace.txt:7: layer 'fc' stands twice. Rename one.",
    ]


def test_a_file_without_layers_is_refused(tmp_path: Path) -> None:
    (fault,) = faults_of(write(tmp_path, HEADER))
    assert fault == "net.trace.txt: there is no layer in it. Write lines of Id Name Forward Backward Comm. Size."


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "the file is empty"), (b"\0\1\2", "this is a binary file"), (b"0 caf\xe9", "this is not UTF-8 text")],
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "net.trace.txt"
    path.write_bytes(content)
    (fault,) = faults_of(path)
    assert fault.startswith(f"net.trace.txt: {problem}")


def test_folders_and_missing_files_are_refused(tmp_path: Path) -> None:
    (folder,) = faults_of(tmp_path)
    assert folder.endswith(": this is a folder, not a file. Name a file in it.")
    (missing,) = faults_of(tmp_path / "nowhere.txt")
    assert missing.startswith("nowhere.txt: there is no such file.")
