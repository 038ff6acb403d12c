"""The one reader of YAML: what it reads, and every way in which text is refused with its place."""

import sys
from importlib import resources
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import CaptureFixture
from ruamel.yaml import YAML

from planner import yaml_text
from planner.cli.run import run
from planner.errors import SpecError
from planner.yaml_text import blocks_of, plain_yaml, read_yaml, read_yaml_documents

GOOD = "dnn: {zoo: vgg16}\ncluster: {preset: osf-testbed}\n"
DEEP = "".join(f"{'  ' * level}k:\n" for level in range(70))
SCALARS = {
    "binary digits that are none": "x: 0b_\n",
    "a number of 5,000 hexadecimal digits": "x: 0x" + "f" * 5000 + "\n",
    "a number of 5,000 digits": "x: " + "9" * 5000 + "\n",
    "a truth value that is none": "x: !!bool x\n",
    "an ordered mapping that is text": "x: !!omap x\n",
    "a set that is text": "x: !!set x\n",
    "an ordered mapping with a key twice": "x: !!omap [{a: 1}, {a: 2}]\n",
    "a number that is text": "x: !!int x\n",
    "a fraction that is text": "x: !!float x\n",
    "a list that is text": "x: !!seq x\n",
    "a mapping that is a list": "x: !!map [a]\n",
    "bytes that are none": "x: !!binary '***'\n",
    "a type of Python's": "x: !!python/object/apply:os.system [ls]\n",
    "a type that nobody knows": "x: !unknown {a: 1}\n",
    "a mapping merged into itself": "x: &z {<<: *z}\n",
    "a list in itself": "x: &z [*z]\n",
    "a mapping in itself": "x: &z {a: *z}\n",
    "a merge of text": "x: {<<: text}\n",
    "a merge of a list of text": "x: {<<: [text]}\n",
    "a key that is a list": "? [a, b]\n: 1\n",
    "a key twice": "x: 1\nx: 2\n",
    "an alias of nothing": "x: *z\n",
    "a directive that is none": "%YAML 9.x\n---\nx: 1\n",
    "a tag of a handle that is none": "x: !e!foo x\n",
    "a letter that YAML does not take": "x: \x01\n",
    "digits of Unicode": "x: !!int \u0663\n",
}


@pytest.mark.parametrize("name", SCALARS)
def test_text_that_yaml_has_no_value_for_is_an_error_of_the_input_with_its_place(name: str) -> None:
    with pytest.raises(SpecError) as error:
        read_yaml(SCALARS[name], "spec.yaml")
    (fault,) = error.value.faults
    assert fault.file == "spec.yaml"
    assert fault.line == 1 or name in ("a key twice", "a letter that YAML does not take"), fault
    assert len(str(fault)) < 400


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize(
    ("command", "file", "text"),
    [
        (("plan",), "spec.yaml", GOOD),
        (("predict",), "spec.yaml", GOOD),
        (("procure",), "spec.yaml", GOOD),
        (("sweep",), "spec.yaml", GOOD),
        (("show", "dnn"), "spec.yaml", GOOD),
        (("check",), "plan.yaml", GOOD),
        (("import",), "accelerate.yaml", "distributed_type: FSDP\nnum_processes: 8\n"),
        (("import",), "task.yaml", "run: x\nresources: {}\nnum_nodes: 2\n"),
        (("import",), "job.yaml", "kind: PyTorchJob\nspec: {}\n"),
        (("import",), "job.yaml", "kind: TFJob\nspec: {}\n"),
        (("import",), "job.yaml", "kind: TrainJob\nspec: {}\n"),
        (("calibrate",), "iterations.yaml", "rows:\n- iteration_time: 1 s\n"),
    ],
)
def test_no_command_calls_such_text_a_bug(
    capsys: CaptureFixture[str], tmp_path: Path, name: str, command: tuple[str, ...], file: str, text: str
) -> None:
    (tmp_path / file).write_text(SCALARS[name] + text if name.startswith("a directive") else text + SCALARS[name])
    code = run([*command, str(tmp_path / file)])
    assert code == 2, capsys.readouterr()


@pytest.mark.parametrize("name", SCALARS)
def test_a_calibration_and_a_network_file_of_such_text_are_refused(
    capsys: CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    (tmp_path / "other.yaml").write_text(SCALARS[name])
    (tmp_path / "spec.yaml").write_text(GOOD + "calibration: other.yaml\n")
    assert run(["plan", str(tmp_path / "spec.yaml")]) == 2
    assert "other.yaml:" in capsys.readouterr().err
    assert run(["plan", "--dnn", str(tmp_path / "other.yaml"), "--cluster", "osf-testbed"]) == 2
    assert "other.yaml:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "mend"), [("a: 1\na: 2\n", "Keep one of them."), ("a:\n\t{b: 1}\n", "Indent with blanks, not with tabs.")]
)
def test_how_to_mend_a_key_that_stands_twice_and_a_tab_is_told(text: str, mend: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_yaml(text, "spec.yaml")
    assert [fault.mend for fault in caught.value.faults] == [mend]


def test_merges_of_merges_do_not_multiply() -> None:
    bomb = "m0: &m0 {a: 1}\n" + "".join(f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}\n" for n in range(1, 25))
    assert read_yaml(bomb).data["m24"] == {"a": 1}
    (found,) = read_yaml_documents(bomb)
    assert isinstance(found, dict)
    assert found["m24"] == {"a": 1}


def test_merges_of_merges_are_put_together_once() -> None:
    """Calls are counted: twice as many merges take twice as many, where each doubled what it merges before."""

    def num_calls(levels: int) -> int:
        bomb = "m0: &m0 {a: 1}\n" + "".join(f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}\n" for n in range(1, levels))
        read_yaml("a: {<<: {}}")  # imports
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"
            if calls > 1_000_000:
                raise AssertionError("more than a million calls")

        sys.setprofile(count)
        try:
            read_yaml(bomb)
        finally:
            sys.setprofile(None)
        return calls

    assert num_calls(100) < 2.2 * num_calls(50)


def test_merges_of_what_nobody_keeps_are_limited_in_depth() -> None:
    chain = "m0: &m0 {a: 1}\n"
    chain += "".join(f"x{n}: {{<<: {{k: &m{n} {{<<: *m{n - 1}}}}}, k: 1}}\n" for n in range(1, 400))
    with pytest.raises(SpecError, match="nested more than 64 levels deep"):
        read_yaml(chain + "z: {<<: *m399}\n")


def test_a_merge_bomb_in_a_launch_file_is_counted_before_its_values_are_made() -> None:
    wide = "m0: &m0 {" + ", ".join(f"k{n}: 1" for n in range(2000)) + "}\n"
    bomb = wide + "".join(f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}\n" for n in range(1, 100))
    with pytest.raises(SpecError, match="with what its aliases repeat it has more than 250000 values"):
        read_yaml_documents(bomb)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x: " + "a" * yaml_text.MOST_LETTERS, "more than 4194304 letters"),
        ("x: [" + "1," * (yaml_text.MOST_VALUES + 1) + "1]", "250001 lines and commas, more than 250000"),
        (DEEP, "nested more than 64 levels deep"),
        ("a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 70)), "nested more than 64 levels deep"),
        ("---\n" * 1001, "more than 1000 documents"),
    ],
)  # fmt: skip
def test_size_depth_and_number_are_limited(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        read_yaml_documents(text, "a.yaml")


def test_a_launch_file_of_a_mebibyte_and_more_is_not_parsed(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    file = tmp_path / "accelerate.yaml"
    file.write_text("distributed_type: FSDP\nnum_processes: 8\nx: " + "a" * yaml_text.MOST_LAUNCH_LETTERS + "\n")
    assert run(["import", str(file)]) == 2
    assert "no YAML document of a usual size" in capsys.readouterr().err


def test_what_is_read_is_what_the_library_reads() -> None:
    text = """\
a: [1, -2, +3, 0o17, 0x1F, 0b101, 012, 1_000, 1e3, .5, 2., -.inf, 1.5E-3]
b: {t: true, f: False, n: null, e: , tilde: ~, yes: yes, day: text}
c: &c {x: 1, y: [1, 2]}
d: {<<: *c, x: 2}
e: {<<: [{p: 1, q: 1}, {q: 2, r: 2}], r: 3}
f: *c
g: !!str 5
h: 'single'
i: "double \\u263a"
j: |
  lines
  more
k: >-
  folded
  text
1: number
"""
    assert read_yaml(text).data == YAML(typ="safe", pure=True).load(StringIO(text))


def test_places_are_those_of_keys_and_items() -> None:
    positions = read_yaml("a:\n  - x: 1\n    y: 2\nb: {c: d}\n").positions
    assert positions["a",] == (1, 1)
    assert positions["a", 0] == (2, 5)
    assert positions["a", 0, "y"] == (3, 5)
    assert positions["b", "c"] == (4, 5)


PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(PLAIN)
def test_what_the_library_writes_is_read_back(data: Any) -> None:
    stream = StringIO()
    YAML(typ="safe", pure=True).dump(data, stream)
    try:
        expected = YAML(typ="safe", pure=True).load(StringIO(stream.getvalue()))
    except Exception:  # what the library itself does not read again
        return
    assert read_yaml(stream.getvalue()).data == expected


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab:-[]{}&*!|>'\"%@`#?, \n<~0x_.e+", max_size=40))
def test_any_text_is_data_or_an_error_of_the_input(text: str) -> None:
    try:
        read_yaml(text)
    except SpecError as error:
        assert error.faults


@pytest.mark.parametrize("room", ["planner.data", "planner.zoo"])
def test_blocks_of_files_that_ship_are_parsed_one_by_one_as_the_whole_is(room: str) -> None:
    texts = [one.read_text(encoding="utf-8") for one in resources.files(room).iterdir() if one.name.endswith(".yaml")]
    assert texts
    for text in texts:
        blocks = {key: plain_yaml(block)[key] for key, block in blocks_of(text).items()}
        assert list(blocks.items()) == list(plain_yaml(text).items())
