import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from planner import zoo
from planner.cost import Profile
from planner.errors import SpecError
from planner.importers.profiles import read_graph_profile
from planner.models.data_parallel import gradients_of

FIGURES = "forward_compute_time=1.5, backward_compute_time=3.0, activation_size=4096.0, parameter_size=512.0"
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "make_profile.py"
real_files = pytest.mark.parametrize(
    ("name", "batch_size", "num_parameters"),
    [
        ("alexnet", 256, 61_100_840),
        ("vgg16", 128, 138_357_544),
        ("resnet50", 128, 25_557_032),
        ("resnet18", 128, 11_689_512),
        ("squeezenet1_0", 128, 1_248_424),
    ],
)


def write(folder: Path, *lines: str, name: str = "net.graph.txt") -> Path:
    path = folder / name
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def operator(name: str, what: str = "Linear(4, 4)", figures: str = FIGURES) -> str:
    return f"{name} -- {what} -- {figures}"


def faults_of(path: Path) -> list[str]:
    """Return what is wrong with a file, a line each, the folder left out."""
    with pytest.raises(SpecError) as caught:
        read_graph_profile(path, batch_size=4)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.faults)
    assert all(line.startswith(str(path)) for line in lines)
    return [line.removeprefix(f"{path.parent}/") for line in lines]


# -- real files --------------------------------------------------------------------------------------------------------


@pytest.mark.measured
@real_files
def test_real_profiles_have_the_parameters_of_their_networks(
    data_folder: Path, name: str, batch_size: int, num_parameters: int
) -> None:
    path = data_folder / "traces" / "pipedream" / f"{name}.graph.txt"
    found = read_graph_profile(path, batch_size=batch_size)
    assert found.dnn.name == name
    assert found.dnn.num_trainable == num_parameters
    assert found.profile.is_measured


@pytest.mark.measured
@pytest.mark.parametrize("name", ["alexnet", "vgg16", "resnet50", "resnet18", "squeezenet1_0", "gnmt"])
def test_real_profiles_keep_every_operator_edge_and_second(data_folder: Path, name: str) -> None:
    path = data_folder / "traces" / "pipedream" / f"{name}.graph.txt"
    text = path.read_text(encoding="utf-8")
    found = read_graph_profile(path, batch_size=128)
    edges = {tuple(line.split(" -- ")) for line in text.replace("\t", "").splitlines() if line.count(" -- ") == 1}
    assert set(found.dnn.graph.edges) == edges
    assert len(found.dnn.layers) == text.count("parameter_size=")
    for key, per_sample_s in (("forward", found.profile.forward_s), ("backward", found.profile.backward_s)):
        rows = [line for line in text.splitlines() if "_time" in line and " -- Input" not in line]
        taken_ms = sum(float(re.findall(rf"{key}_compute_time=([\d.]+)", line)[0]) for line in rows)
        assert 128 * per_sample_s.sum() == pytest.approx(taken_ms / 1000)


@pytest.mark.measured
def test_resnet50_keeps_its_branches_and_its_gradients(data_folder: Path) -> None:
    found = read_graph_profile(data_folder / "traces" / "pipedream" / "resnet50.graph.txt", batch_size=128)
    forks = [name for name in found.dnn.graph if found.dnn.graph.out_degree(name) > 1]
    sums = [layer.name for layer in found.dnn.layers if layer.kind == "add"]
    assert len(sums) == 16
    assert len(forks) >= 16
    assert all(len(found.dnn.inputs_of(name)) == 2 for name in sums)
    ours = gradients_of(found.dnn, found.profile, gradient_bytes=4)
    known = zoo.build("resnet50")
    no_times = Profile(forward_s=np.zeros(len(known.layers)), backward_s=np.zeros(len(known.layers)))
    theirs = gradients_of(known, no_times, gradient_bytes=4)
    assert sorted(ours.size_bytes) == sorted(theirs.size_bytes)


@pytest.mark.measured
def test_the_input_operators_time_is_reading(data_folder: Path) -> None:
    found = read_graph_profile(data_folder / "traces" / "pipedream" / "resnet50.graph.txt", batch_size=256)
    text = (data_folder / "traces" / "pipedream" / "resnet50.graph.txt").read_text(encoding="utf-8")
    reading = re.search(r"-- Input -- forward_compute_time=([\d.]+)", text)
    assert (found.profile.read_s is None) == (reading is None)
    if reading:
        assert found.profile.read_s == pytest.approx(float(reading[1]) / 1000 / 256)


# -- the format --------------------------------------------------------------------------------------------------------


def test_times_are_seconds_a_sample_and_sizes_lose_the_batch(tmp_path: Path) -> None:
    lists = FIGURES.replace("activation_size=4096.0", "activation_size=[4096.0; 64.0; 32.0]")
    path = write(
        tmp_path,
        "# a comment",
        "",
        operator("node10", "ReLU(inplace)"),
        operator("node2", "LSTM(4, 4)", lists),
        operator("node1", "Input0"),
        "\tnode2 -- node10",
        "\tnode1 -- node2",
    )
    found = read_graph_profile(path, batch_size=8)
    assert [layer.name for layer in found.dnn.layers] == ["node1", "node2", "node10"]
    assert [layer.kind for layer in found.dnn.layers] == ["input", "recurrent", "activation"]
    assert found.profile.forward_s == pytest.approx(np.array([0, 1.5e-3, 1.5e-3]) / 8)
    assert found.profile.backward_s == pytest.approx(np.full(3, 3e-3) / 8)
    assert found.profile.read_s == pytest.approx(1.5e-3 / 8)
    assert [layer.output_shape for layer in found.dnn.layers] == [(128,), (131,), (128,)]
    assert [layer.num_stored_elements for layer in found.dnn.layers] == [128, 131, 0]
    assert found.dnn.num_trainable == 3 * 128


def test_sizes_that_are_no_multiples_of_the_batch_are_doubted(tmp_path: Path) -> None:
    path = write(tmp_path, operator("node1"), operator("node2"), "node1 -- node2")
    assert not read_graph_profile(path, batch_size=8).warnings
    (doubt,) = read_graph_profile(path, batch_size=7).warnings
    assert "no multiples of a batch of 7; set dnn.profile_batch" in doubt


def test_windows_line_ends_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "net.txt"
    path.write_bytes(b"\xef\xbb\xbf" + f"{operator('node1')}\r\n{operator('node2')}\r\n\tnode1 -- node2\r\n".encode())
    assert read_graph_profile(path, batch_size=1).dnn.inputs_of("node2") == ("node1",)


# -- what is wrong -----------------------------------------------------------------------------------------------------


def test_all_faults_are_found_in_one_pass(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        operator("node1"),
        operator("node1"),
        "what is this?",
        operator("node2", figures=FIGURES.replace("1.5", "-1.5")),
        operator("node3", figures=FIGURES.replace("3.0", "nan").replace("=512.0", "=x")),
        operator("node4", figures="forward_compute_time=1, backward_compute_time=1, parameter_size=4"),
        operator("node5", figures="backward_compute_time=1, activation_size=[3; -1], parameter_size=[]"),
        "node1 -- node9",
        operator("node6", figures=FIGURES.replace("4096.0", "[1e308; 1e308]")),
    )
    assert faults_of(path) == [
        "net.graph.txt:2: operator 'node1' stands twice (first on line 1). Rename one.",
        "net.graph.txt:3: this is neither an operator nor an edge. Write e.g. node1 -- Linear -- forward_compute_time=1.5, ... or node1 -- node2.",
        "net.graph.txt:4: node2: forward_compute_time: '-1.5' is not a number >= 0. Write forward_compute_time=1.5.",
        "net.graph.txt:5: node3: backward_compute_time: 'nan' is not a number >= 0. Write backward_compute_time=1.5.",
        "net.graph.txt:5: node3: parameter_size: 'x' is not a number >= 0. Write parameter_size=1.5.",
        "net.graph.txt:6: node4: activation_size: it is missing. Write activation_size=1.5.",
        "net.graph.txt:7: node5: forward_compute_time: it is missing. Write forward_compute_time=1.5.",
        "net.graph.txt:7: node5: activation_size: '[3; -1]' is not a number >= 0. Write activation_size=1.5.",
        "net.graph.txt:7: node5: parameter_size: '[]' is not a number >= 0. Write parameter_size=1.5.",
        "net.graph.txt:9: node6: activation_size: '[1e308; 1e308]' is not a number >= 0. Write activation_size=1.5.",
        "net.graph.txt:8: the edge names 'node9', which is no operator of this file. Add its line, or remove the edge.",
    ]


def test_a_cycle_is_named_with_the_line_of_one_of_its_edges(tmp_path: Path) -> None:
    nodes = [operator(f"node{number}") for number in (1, 2, 3, 12)]
    path = write(tmp_path, *nodes, "node2 -- node12", "node1 -- node2", "node2 -- node3", "node3 -- node2")
    (fault,) = faults_of(path)
    assert re.match(r"net\.graph\.txt:[78]: the layers form a cycle: node\d -> node\d -> node\d; remove one", fault)


def test_an_operator_that_reads_itself_is_a_cycle(tmp_path: Path) -> None:
    (fault,) = faults_of(write(tmp_path, operator("node1"), "node1 -- node1"))
    assert fault.startswith("net.graph.txt:2: the layers form a cycle: node1 -> node1")


def test_a_file_of_comments_has_no_operator(tmp_path: Path) -> None:
    (fault,) = faults_of(write(tmp_path, "# nothing", ""))
    assert "there is no operator in it. Give at least one line" in fault


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b"node1 -- \0", "this is a binary file"),
        (b"\xff\xfe\x00x", "this is"),
        (b"caf\xe9", "this is not UTF-8 text"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "net.graph.txt"
    path.write_bytes(content)
    (fault,) = faults_of(path)
    assert fault.startswith(f"net.graph.txt: {problem}")


def test_folders_and_missing_files_are_refused(tmp_path: Path) -> None:
    (folder,) = faults_of(tmp_path)
    assert folder.endswith(": this is a folder, not a file. Name a file in it.")
    (missing,) = faults_of(tmp_path / "nowhere.txt")
    assert missing.startswith("nowhere.txt: there is no such file. Check the path")


# -- the profile that ships --------------------------------------------------------------------------------------------


def check_residual(path: Path, *, batch: int, width: int) -> None:
    found = read_graph_profile(path, batch_size=batch)
    kinds = ["fully_connected", "activation", "fully_connected", "add", "fully_connected"]
    assert [layer.kind for layer in found.dnn.layers] == kinds
    assert found.dnn.inputs_of("node4") == ("node3", "node2")
    assert found.dnn.graph.out_degree("node2") == 2
    assert found.dnn.num_trainable == 3 * (width**2 + width)
    assert all(layer.output_shape == (width,) for layer in found.dnn.layers)
    assert (found.profile.forward_s > 0).all() and (found.profile.backward_s > 0).all()


def test_the_shipped_profile_is_a_network_with_a_branch() -> None:
    with resources.as_file(resources.files("planner.data") / "examples" / "residual-mlp.graph.txt") as path:
        check_residual(path, batch=64, width=1024)
        assert re.search(r"# median of \d+ runs with numpy [\d.]+ on a CPU", path.read_text(encoding="utf-8"))


def test_the_script_that_measured_it_writes_the_format(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--batch", "8", "--width", "64", "--repeats", "3"]
    written = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    check_residual(write(tmp_path, written), batch=8, width=64)
