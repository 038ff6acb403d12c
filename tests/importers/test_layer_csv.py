import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cli.run import run
from planner.errors import SpecError
from planner.importers.kinds import kind_of
from planner.importers.profiles import COLUMNS, read_layer_csv, template

HEADER = ",".join(COLUMNS)
DATA = Path(__file__).parent / "data"


def write(folder: Path, *lines: str, name: str = "net.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def faults_of(path: Path) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read_layer_csv(path, batch_size=4)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.faults)
    return [line.removeprefix(f"{path.parent}/") for line in lines]


# -- the table ---------------------------------------------------------------------------------------------------------


def test_the_template_is_a_table_that_is_read(tmp_path: Path) -> None:
    found = read_layer_csv(write(tmp_path, template()), batch_size=32)
    assert [layer.name for layer in found.dnn.layers] == ["data", "conv1", "relu1", "pool1", "fc1"]
    assert found.dnn.num_trainable == (37_632 + 802_816_000) // 4
    assert found.dnn.num_multiply_adds == (3_776_446_464 + 6_422_528_000) // 32
    assert found.dnn.layers[1].num_output_elements == 64 * 112 * 112
    assert found.profile.read_s == pytest.approx(0.0021 / 32)
    assert not found.warnings


def test_figures_are_of_a_whole_batch_and_parameters_are_not(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, "a,matmul,,0.4,0.8,1600,400,80", "b,,a,1,2,,,")
    found = read_layer_csv(path, batch_size=4)
    assert found.profile.forward_s == pytest.approx(np.array([0.1, 0.25]))
    assert found.profile.backward_s == pytest.approx(np.array([0.2, 0.5]))
    first, second = found.dnn.layers
    assert (first.num_output_elements, first.num_trainable, first.num_multiply_adds) == (100, 100, 20)
    assert second.kind == "operator"
    assert found.dnn.name == "net"


@pytest.mark.parametrize("separator", [" ", ";", " ; "])
def test_several_inputs_are_separated_by_blanks_or_semicolons(tmp_path: Path, separator: str) -> None:
    path = write(tmp_path, HEADER, "a,,,1,1,,,", "b,,a,1,1,,,", f"c,,a{separator}b,1,1,,,")
    dnn = read_layer_csv(path, batch_size=1).dnn
    assert dnn.inputs_of("c") == ("a", "b")


def test_without_inputs_the_layers_are_a_chain_and_columns_may_stand_in_any_order(tmp_path: Path) -> None:
    path = write(tmp_path, "# times of mine", "", "backward_s, Name ,forward_s", "2, a ,1", '4,"b, too",3')
    found = read_layer_csv(path, batch_size=1)
    assert [layer.name for layer in found.dnn.layers] == ["a", "b, too"]
    assert found.dnn.inputs_of("b, too") == ("a",)
    assert found.profile.forward_s == pytest.approx(np.array([1, 3]))


def test_the_table_of_the_documentation_is_the_templates() -> None:
    text = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text(encoding="utf-8")
    lines = text.split("\nname,")[1].split("```")[0].splitlines()
    assert len(lines) == 3
    assert f"name,{lines[0]}\n{lines[1]}\n{lines[2]}\n" in template()


def test_the_commands_of_the_documentation_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "--template"]) == 0
    table = write(tmp_path, capsys.readouterr().out, name="layers.csv")
    trace = DATA / "cnn.pt.trace.json.gz"
    for path, count in ((table, 5), (trace, 15)):
        block = tmp_path / f"{path.stem}.yaml"
        assert run(["import", str(path), "--profile-batch", "16", "-o", str(block)]) == 0
        printed = capsys.readouterr()
        assert f"layers: {count}" in printed.out + printed.err
        assert block.exists()


# -- what is wrong -----------------------------------------------------------------------------------------------------


def test_all_faults_are_found_in_one_pass(tmp_path: Path) -> None:
    path = write(
        tmp_path, HEADER, "a,,,fast,-1,nan,inf,", "b,,nowhere,1,1,,,", "b,,,1,1,,,", ",,,1,1,,,", "c,,1", 'd,"x,,1,1,,,'
    )
    assert faults_of(path) == [
        "net.csv:2: forward_s: 'fast' is not a number >= 0. Write e.g. 0.00184.",
        "net.csv:2: backward_s: '-1' is not a number >= 0. Write e.g. 0.00371.",
        "net.csv:2: output_bytes: 'nan' is not a number >= 0. Write e.g. 802816.",
        "net.csv:2: parameter_bytes: 'inf' is not a number >= 0. Write e.g. 802816.",
        "net.csv:5: name: it is empty. Give every layer a name.",
        f"net.csv:6: 3 columns instead of 8. Write {HEADER}.",
        "net.csv:7: unexpected end of data. Close the quotation mark.",
        "net.csv:3: layer 'b' stands twice. Rename one.",
        "net.csv:4: layer 'b' stands twice. Rename one.",
        "net.csv:3: inputs: layer 'b' reads 'nowhere', which does not exist. "
        "Name a layer of this table; names of several inputs hold no blanks.",
    ]


@pytest.mark.parametrize(
    ("header", "problems"),
    [
        ("a,b,c", [f"net.csv:1: the first line does not name the columns. Begin with {HEADER}."]),
        (
            "name,forward_ms,backward_s",
            [
                "net.csv:1: forward_ms: there is no such column. Convert it to forward_s.",
                "net.csv:1: forward_s: it is missing. Add the column forward_s.",
            ],
        ),
        ("name,forward_s,backward_s,name", ["net.csv:1: name: it stands twice. Remove one."]),
        (
            "name,forward_s,backward_s,colour",
            [f"net.csv:1: colour: there is no such column. Known ones are {', '.join(COLUMNS)}."],
        ),
        ("name,forward_s", ["net.csv:1: backward_s: it is missing. Add the column backward_s."]),
    ],
)
def test_columns_are_known_by_name_and_unit(tmp_path: Path, header: str, problems: list[str]) -> None:
    assert faults_of(write(tmp_path, header, "a,1,1,1")) == problems


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([], "there is no layer in it. Write a line for each layer."),
        (["a,,b,1,1,,,", "b,,a,1,1,,,"], "the layers form a cycle: "),
        (["a,,a,1,1,,,"], "the layers form a cycle: "),
        (["a,,,0,0,,,"], "all layers take 0 s"),
        (["a,,,1e300,0,,,"], "a figure of 1e+300 is beyond all reason"),
    ],
)
def test_tables_that_make_no_network_are_refused(tmp_path: Path, rows: list[str], problem: str) -> None:
    (fault,) = faults_of(write(tmp_path, HEADER, *rows))
    assert fault.startswith(f"net.csv: {problem}")


@given(st.text(max_size=200))
def test_any_text_gives_a_network_or_faults(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("text") / "net.csv"
    path.write_bytes(f"{HEADER}\n{text}".encode("utf-8", errors="replace"))
    try:
        assert read_layer_csv(path, batch_size=3).dnn.layers
    except SpecError as error:
        assert error.faults


# -- kinds of files ----------------------------------------------------------------------------------------------------

GRAPH = (
    "node1 -- Linear(4, 4) -- forward_compute_time=1, backward_compute_time=2, activation_size=4, parameter_size=8\n"
)
# A model of one node: ir_version 8, a graph of two bytes, an opset of two.
ONNX = b"\x08\x08\x3a\x02\x12\x00\x42\x02\x10\x0d"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (template().encode(), "layer_csv"),
        (b"# mine\nNAME, forward_s,backward_s\na,1,2", "layer_csv"),
        (b"name,forward_ms,backward_ms\na,1,2", "layer_csv"),  # wrong, but no other kind
        (b"Id Name Forward Backward Comm. Size\n0 data 1 0 0 0\n", "layer_trace"),
        (b"Id,Name,Forward,Backward,Comm.,Size\n0,data,1,0,0,0\n", "layer_trace"),
        (b"# a comment\n1 conv1 8e1 160 999 400", "layer_trace"),
        (GRAPH.encode(), "graph"),
        (b"# first\n\n" + GRAPH.encode(), "graph"),
        (b'{"model_type": "llama"}', "huggingface"),
        (b'\xef\xbb\xbf {"architectures": ["X"]}', "huggingface"),
        (b'{"schemaVersion": 1, "traceEvents": [', "chrome_trace"),
        (b'[{"ph": "X", "name": "a"}]', "chrome_trace"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0), "chrome_trace"),
        (gzip.compress(b'{"schemaVersion": 1, "traceEvents": [' + b" " * 2**22, mtime=0)[:-500], "chrome_trace"),
        (ONNX, "onnx"),
        (b"\x08\x08\x3a\xff\xff\xff\xff\x0f" + b"\x0a" * 50, "onnx"),  # cut off: its own reader says so
        (b"", None),
        (b"hello", None),
        (b"{}", None),
        (b'{"a": 3}', None),
        (b'"model_type"', None),
        (b"[1, 2", None),
        (b"{" * 100_000, None),
        (b"\0\1\2", None),
        (b"\x08\x08", None),
        (b"\x1f\x8bgarbage", None),
        (gzip.compress(b"hello", mtime=0), None),
        (b"1 2 3 4 5", None),
    ],
)
def test_a_file_is_told_by_its_content(tmp_path: Path, content: bytes, kind: str | None) -> None:
    path = tmp_path / "anything.dat"
    path.write_bytes(content)
    assert kind_of(path) == kind


@pytest.mark.measured
def test_real_files_are_told_by_their_content(data_folder: Path) -> None:
    assert kind_of(data_folder / "traces" / "pipedream" / "vgg16.graph.txt") == "graph"


def test_traces_are_told_by_their_content() -> None:
    assert {kind_of(path) for path in DATA.glob("*.pt.trace.json.gz")} == {"chrome_trace"}


def test_real_onnx_files_are_told_by_their_content() -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    files = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("*.onnx"))
    assert len(files) == 9
    assert {kind_of(path) for path in files} == {"onnx"}


def test_what_cannot_be_read_is_of_no_kind(tmp_path: Path) -> None:
    assert kind_of(tmp_path) is None
    assert kind_of(tmp_path / "nowhere") is None
    assert kind_of(Path("a\0b")) is None


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=50).map(lambda tail: ONNX[:4] + tail)))
def test_any_bytes_are_of_some_kind_or_none(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "file"
    path.write_bytes(content)
    assert kind_of(path) in (None, "onnx", "huggingface", "graph", "layer_trace", "layer_csv", "chrome_trace")


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3), lambda inner: st.dictionaries(st.text(max_size=3), inner)
    )
)
def test_json_of_other_programs_is_of_no_kind(tmp_path_factory: pytest.TempPathFactory, content: object) -> None:
    path = tmp_path_factory.mktemp("json") / "file.json"
    path.write_text(json.dumps({"other": content}))
    assert kind_of(path) is None
