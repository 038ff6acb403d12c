import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import planner
from planner import zoo
from planner.cli.question import source_of
from planner.cli.run import program, run
from planner.dnn import Dnn, Layer, Repeat, Tensor, Window
from planner.errors import SpecError
from planner.importers.huggingface import read_huggingface
from planner.importers.imported import Imported
from planner.network_import import import_file
from planner.question.dnn import network_block
from planner.question.source import JsonPlaces
from planner.yaml_text import Place

CLUSTER = {
    "machines": [{"count": 2, "devices": 2, "device": "v100-sxm2", "inside": "nvlink-2", "network": "10 Gbit/s"}]
}
GRAPH = """\
node1 -- Input0 -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=4096.0, parameter_size=0.0
node2 -- Linear(a) -- forward_compute_time=1.5, backward_compute_time=3.0, activation_size=4096.0, parameter_size=512.0
node1 -- node2
"""
LLAMA = {
    **{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"vocab_size": 100, "intermediate_size": 128, "max_position_embeddings": 64},
}


def built(block: dict[str, object]) -> Dnn:
    """The network of a block, as a question reads it."""
    return planner.load(
        {"dnn": {**block, "batch_per_device": 8}, "cluster": CLUSTER, "objective": "iteration_time"}
    ).dnn


@pytest.mark.parametrize("name", ["resnet50", "googlenet", "alexnet", "vgg16", "adam-mnist"])
def test_a_convolutional_network_comes_back_from_its_block_layer_by_layer(name: str) -> None:
    dnn = zoo.build(name)
    again = built(network_block(dnn))
    assert again.layers == dnn.layers
    assert [again.inputs_of(layer.name) for layer in again.layers] == [
        dnn.inputs_of(layer.name) for layer in dnn.layers
    ]


@pytest.mark.parametrize(
    "name",
    [
        *("gpt3-13b", "mixtral-8x7b", "deepseek-v3", "vit-b-16", "bert-large", "llama3-70b", "kimi-k2", "gemma3-27b"),
        *("gpt-oss-20b", "nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b", "llama4-scout"),
    ],
)
def test_a_transformer_comes_back_from_its_block_with_all_its_sizes(name: str) -> None:
    dnn = zoo.build(name)
    assert built(network_block(dnn)).transformer == dnn.transformer


@pytest.mark.parametrize(
    "name", ["gpt-oss-120b", "NVIDIA-Nemotron-3-Nano-30B-A3B", "Qwen3-Next-80B-A3B", "gemma-3-27b"]
)
def test_a_configuration_written_to_a_file_is_planned_for_as_the_same_network(name: str, tmp_path: Path) -> None:
    table = json.loads((Path(__file__).parent / "data" / "huggingface.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(table[name]["config"]), encoding="utf-8")
    assert run(["import", str(tmp_path / "config.json"), "-o", str(tmp_path / "dnn.yaml")]) == 0
    found = built({"file": str(tmp_path / "dnn.yaml"), "dtype": "fp16"}).transformer
    assert found is not None
    assert found == read_huggingface(tmp_path).transformer
    assert found.num_parameters == table[name]["parameters"]


roles = st.sampled_from(["weight", "bias", "scale", "shift", "moving"])
tensors = st.lists(st.tuples(st.integers(1, 10**9), roles), max_size=3)


@given(
    rows=st.lists(
        st.tuples(
            tensors, st.lists(st.integers(1, 999), min_size=1, max_size=4), st.integers(1, 10**12), st.booleans()
        ),
        min_size=1,
        max_size=6,
    ),
    window=st.none()
    | st.builds(Window, kernel=st.integers(1, 11), stride=st.integers(1, 4), padding=st.integers(0, 5)),
)
def test_any_chain_of_layers_comes_back_from_its_block(
    rows: list[tuple[list[tuple[int, str]], list[int], int, bool]], window: Window | None
) -> None:
    layers = [
        (
            Layer(
                name=f"layer {index}",
                kind="operator",
                output_shape=tuple(shape),
                num_multiply_adds=work,
                tensors=tuple(
                    Tensor(name=f"t{at}", num_elements=size, role=role) for at, (size, role) in enumerate(held)
                ),
                is_in_place=is_in_place,
                kept_beside_bytes=work % 10**6,
                window=window,
            ),
            [f"layer {index - 1}"] if index else [],
        )
        for index, (held, shape, work, is_in_place) in enumerate(rows)
    ]
    repeats = (Repeat(first=0, num_layers=1, count=len(rows), kind="block"),)
    dnn = Dnn("chain", layers, repeats=repeats)
    again = built(network_block(dnn))
    assert again.layers == dnn.layers
    assert again.repeats == dnn.repeats


def test_a_network_may_stand_in_a_question_itself_with_its_doubts() -> None:
    found = Imported(dnn=zoo.build("alexnet"), dtype="fp16", warnings=("2 operators of unknown kinds: Foo (2)",))
    question = {"dnn": {"network": found, "batch_per_device": 8}, "cluster": CLUSTER, "objective": "iteration_time"}
    problem = planner.load(question)
    assert problem.dnn.num_trainable == found.dnn.num_trainable
    assert problem.training.dtype == "fp16"
    assert found.warnings[0] in problem.warnings
    again = planner.load(problem.resolved)
    assert found.warnings[0] in again.warnings  # whoever reads the answer alone is told, too
    assert planner.load({**question, "dnn": found.dnn}).training.batch_per_device == 32


def test_an_imported_profile_gives_the_plan_of_the_profile(tmp_path: Path) -> None:
    (tmp_path / "a.graph.txt").write_text(GRAPH)
    question = {"cluster": CLUSTER, "objective": "iteration_time"}
    (tmp_path / "whole.json").write_text(
        json.dumps({"dnn": {"profile": "a.graph.txt", "profile_batch": 16, "batch_per_device": 4}, **question})
    )
    (tmp_path / "split.json").write_text(json.dumps({"dnn": {"file": "net.yaml", "batch_per_device": 4}, **question}))
    code = run(["import", str(tmp_path / "a.graph.txt"), "--profile-batch", "16", "-o", str(tmp_path / "net.yaml")])
    assert code == 0
    whole, split = (planner.plan(planner.load(tmp_path / name)) for name in ("whole.json", "split.json"))
    assert (whole.objective, whole.family) == (split.objective, split.family)


def test_blocks_are_written_as_yaml_and_as_json_and_read_back_alike(tmp_path: Path) -> None:
    (tmp_path / "a.graph.txt").write_text(GRAPH)
    for name in ("net.yaml", "net.json"):
        assert run(["import", str(tmp_path / "a.graph.txt"), "--profile-batch", "16", "-o", str(tmp_path / name)]) == 0
    networks = [
        planner.load({"dnn": {"file": str(tmp_path / name)}, "cluster": CLUSTER, "objective": "iteration_time"})
        for name in ("net.yaml", "net.json")
    ]
    assert networks[0].resolved == networks[1].resolved


def test_the_answer_on_stdout_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.graph.txt").write_text(GRAPH)
    result = CliRunner().invoke(program(), ["import", str(tmp_path / "a.graph.txt"), "--profile-batch", "4", "--json"])
    document = json.loads(result.stdout)
    assert document["schema"] == "planner.import/1"
    assert document["totals"]["trainable"] == 128
    assert (
        sum(row["layers"] for row in document["rows"]) == document["totals"]["layers"] == len(document["dnn"]["layers"])
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to import"),
        (["a.graph.txt", "--run", "a:b"], "a file and a factory"),
        (["missing.onnx"], "no such file"),
        (["a.graph.txt"], "--profile-batch"),
        (["a.graph.txt", "--dimension", "seq"], "seq=128"),
        (["empty.txt"], "empty"),
        (["noise.txt"], "of no kind that is known"),
        (["a.graph.txt", "--profile-batch", "4", "-o", "a.graph.txt"], "the file that is imported"),
        (["a.graph.txt", "--profile-batch", "4", "-o", "no/such/folder.yaml"], "cannot be written"),
    ],
)
def test_what_cannot_be_imported_is_refused_in_words(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.graph.txt").write_text(GRAPH)
    Path("empty.txt").write_text(" \n")
    Path("noise.txt").write_text("it was a dark and stormy night\n")
    assert run(["import", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert Path("a.graph.txt").read_text() == GRAPH


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"file": "net.yaml", "zoo": "vgg16"}, "both name a network"),
        ({"file": 3}, "the name of a file"),
        ({"file": "missing.yaml"}, "no such file"),
        ({"file": "wrong.yaml"}, "wrong.yaml:2"),
        ({"file": "chained.yaml"}, "a further file"),
        ({"zoo": "vgg16", "repeats": [{"first": 0, "layers": 1, "count": 1}]}, "repeats belong to layers"),
        ({"zoo": "vgg16", "dimensions": {"seq": 3}}, "belong to an ONNX file"),
        ({"layers": [{"name": "a", "multiply_adds": 5, "shape": [3], "output": "8 B"}]}, "Keep one of them"),
        (
            {"layers": [{"name": "a", "multiply_adds": 5}], "repeats": [{"first": 0, "layers": 1, "count": 2}]},
            "reach to",
        ),
        ({"torch": "os:getcwd"}, "a spec alone must not"),
        ({"file": "unread.yaml", "batch_per_device": 8}, "unread.yaml:3:3: dnn.layers: layer 'b' reads 'c'"),
        ({"file": "sizes.json"}, "of the kind huggingface. Write huggingface: instead"),
    ],
)
def test_a_question_with_a_wrong_network_is_refused_in_words(
    block: dict[str, object], said: str, tmp_path: Path
) -> None:
    (tmp_path / "net.yaml").write_text("dnn: {zoo: vgg16}\n")
    (tmp_path / "wrong.yaml").write_text("dnn:\n  zou: vgg16\n")
    (tmp_path / "chained.yaml").write_text("dnn: {file: net.yaml}\n")
    (tmp_path / "unread.yaml").write_text(
        "dnn:\n  name: n\n  layers:\n  - {name: a, multiply_adds: 5}\n  - {name: b, inputs: [c]}\n"
    )
    (tmp_path / "sizes.json").write_text(json.dumps(LLAMA))
    (tmp_path / "spec.json").write_text(json.dumps({"dnn": block, "cluster": CLUSTER, "objective": "iteration_time"}))
    with pytest.raises(SpecError, match=said):
        planner.load(tmp_path / "spec.json")


def test_the_code_of_a_module_is_run_only_when_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap_module.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    question = {"dnn": {"torch": "trap_module:make"}, "cluster": CLUSTER, "objective": "iteration_time"}
    with pytest.raises(SpecError, match="--run trap_module:make"):
        planner.load(question)
    with pytest.raises(SpecError, match="would run code"):
        planner.load(question, run="trap_module:other")


def test_a_fault_in_a_json_file_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(
        '{\n "dnn": {"zoo": "vgg16"},\n "cluster": {"preset": "osf-testbed"},\n "goal": 3\n}'
    )
    with pytest.raises(SpecError, match=r"spec\.json:4:2: goal: unknown key"):
        planner.load(tmp_path / "spec.json")


@pytest.mark.parametrize(
    "text", ['{"dnn": 1, "dnn": 2}', '{"dnn": NaN}', '{"a": ' * 100 + "1" + "}" * 100, '{"dnn": [1,]']
)
def test_json_that_is_none_is_judged_as_yaml_or_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(text)
    with pytest.raises(SpecError, match=r"spec\.json"):
        planner.load(tmp_path / "spec.json")


def test_an_imported_network_has_its_figures_in_rows(tmp_path: Path) -> None:
    (tmp_path / "a.graph.txt").write_text(GRAPH)
    found = import_file(tmp_path / "a.graph.txt", batch_size=4)
    assert found.key == "dnn"
    assert sum(row["trainable"] for row in found.rows()) == found.totals()["trainable"]


def test_a_folder_of_a_checkpoint_is_read_by_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert import_file(tmp_path).kind == "huggingface"
    assert source_of(str(tmp_path)) == "huggingface"
    (tmp_path / "config.json").rename(tmp_path / "sizes.json")
    assert source_of(str(tmp_path / "sizes.json")) == "huggingface"


@pytest.mark.parametrize(
    ("name", "text", "given", "said"),
    [
        ("sizes.json", json.dumps(LLAMA), {"sizes": {"n": 3}, "batch_size": 4}, "(?s)--dimension.*--profile-batch"),
        ("a.graph.txt", GRAPH, {"batch_size": 4, "is_text_only": True}, "--text-only: it belongs to a Hugging Face"),
        ("a.graph.txt", GRAPH, {"batch_size": 4, "sequence_length": 8}, "--sequence-length: it belongs"),
        ("cut.json", '{"model_type": "llama",\n', {}, r"cut\.json:2:1: this is no JSON, or not all of it"),
        ("net.onnx", "\x08\x08", {}, "there is no operator in it"),
    ],
)
def test_a_file_is_refused_by_what_it_is(
    name: str, text: str, given: dict[str, Any], said: str, tmp_path: Path
) -> None:
    if name.endswith(".onnx"):
        pytest.importorskip("onnx", reason="onnx is not installed")
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError, match=said):
        import_file(tmp_path / name, **given)


@pytest.mark.parametrize("flags", [["--dimension", "a=3", "--dimension", "a=4"], ["--run", "os:getcwd", "--text-only"]])
def test_options_that_would_not_be_used_are_refused(flags: list[str], tmp_path: Path) -> None:
    file = [] if "--run" in flags else [str(tmp_path / "net.onnx")]
    with pytest.raises(SpecError, match=r"has two sizes|has no use for it"):
        CliRunner().invoke(program(), ["import", *file, *flags], catch_exceptions=False, standalone_mode=False)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(st.characters(codec="ascii"), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab"\\:,{ ', max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(values=json_values, indent=st.sampled_from([None, 0, 2]))
def test_every_part_of_a_json_file_is_found_where_it_stands(values: object, indent: int | None) -> None:
    text = "\n " + json.dumps({"dnn": values}, indent=indent)
    places = JsonPlaces(text)
    lines = text.split("\n")

    def check(part: object, place: Place) -> None:
        line, column = places[place]
        own = place[-1] if isinstance(place[-1], str) else part
        beginning = json.dumps(own, indent=indent).split("\n")[0]
        assert lines[line - 1][column - 1 :].startswith(beginning)
        walk(part, place)

    def walk(part: object, place: Place) -> None:
        rows = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        for key, value in rows:
            check(value, (*place, key))
        assert places.get((*place, 99)) is None
        assert (*place, "no such key") not in places

    walk({"dnn": values}, ())
