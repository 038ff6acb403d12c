"""Layer replacement: the rewrite, what a spec may say of it, and the choice among the networks that it makes."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner import data, zoo
from planner.answer.documents import dump
from planner.cost import Profile
from planner.dnn import Dnn, Layer, Tensor
from planner.errors import SpecError
from planner.networks import computation_bound, name_of, network_of, networks_of
from planner.problem import Problem
from planner.substitution import check_fit, ends_of, profile_after, rewrite, run_between
from tests.referee import second_physics

HEAD = {"name": "head", "layers": {"first": "fc6", "last": "fc8"}, "by": "vgg16-conv-head"}
OSF: dict[str, Any] = {"cluster": {"preset": "osf-testbed"}, "families": ["all_reduce"]}


def vgg(*substitutions: Mapping[str, Any], zoo: str = "vgg16", **more: Any) -> dict[str, Any]:
    """A question about a VGG with these substitutions."""
    return {**OSF, "dnn": {"zoo": zoo, "batch_per_device": 32, "substitutions": list(substitutions)}, **more}


def layers_question(*substitutions: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A question about a chain a -> b -> c -> d of counted layers, each of 100 elements, on two slow machines."""
    row = {"multiply_adds": 1e9, "parameters": "40 MB", "output": "400 B"}
    layers = [
        {"name": name, "inputs": list(read), **row} for name, read in zip("abcd", ["", "a", "b", "c"], strict=True)
    ]
    machines = [{"count": 2, "device": "rtx-3090", "network": "10 Gbit/s", "latency": "20 us"}]
    dnn = {"layers": layers, "batch_per_device": 8, "dataset_samples": 1000, "substitutions": list(substitutions)}
    return {"dnn": dnn, "cluster": {"machines": machines}, "families": ["all_reduce"], **more}


def block(name: str, *, multiply_adds: float = 1e9, parameters: str = "4 MB", output: str = "400 B") -> dict[str, Any]:
    return {"layers": [{"name": name, "multiply_adds": multiply_adds, "parameters": parameters, "output": output}]}


def taken_networks(problem: Problem) -> list[tuple[str, ...]]:
    return [network.taken for network in networks_of(problem)]


# -- the rewrite -----------------------------------------------------------------------------------------------------


def test_the_shipped_head_makes_the_zoo_s_replaced_vgg16() -> None:
    problem = planner.load(vgg(HEAD))
    ours, theirs = network_of(problem, ["head"]).dnn, zoo.build("vgg16-replaced-head")
    assert ours.layers == theirs.layers
    assert set(ours.graph.edges) == set(theirs.graph.edges)
    assert (ours.num_trainable, ours.num_weights, ours.num_weight_layers) == (15_490_344, 15_484_608, 15)
    assert ours.num_multiply_adds / 1e9 == pytest.approx(15.385, abs=5e-4)


def test_the_profile_is_that_of_the_new_network() -> None:
    changed = network_of(planner.load(vgg(HEAD)), ["head"]).profiles["rtx-2080-ti"]
    direct = planner.load(vgg(zoo="vgg16-replaced-head")).profiles["rtx-2080-ti"]
    # What the host takes to launch a block is told by the block alone, of which the whole network hides some.
    for ours, theirs in zip(changed.whole, direct.whole, strict=True):
        assert ours(32) == pytest.approx(theirs(32), rel=2e-3)
    unlike = ~np.isclose(changed.forward(32), direct.forward(32), rtol=1e-3)
    assert unlike.sum() <= 2
    assert changed.update_s == pytest.approx(direct.update_s)


@pytest.mark.parametrize("name", ["vgg11", "vgg13", "vgg16", "vgg16c", "vgg19"])
def test_the_shipped_head_fits_every_vgg_of_the_zoo(name: str) -> None:
    before, after = (network_of(planner.load(vgg(HEAD, zoo=name)), taken).dnn for taken in ([], ["head"]))
    assert before.num_trainable - after.num_trainable == 138_357_544 - 15_490_344
    assert after.layers[-1].output_shape == (1000,)


def test_a_run_may_be_written_with_dots_as_a_list_or_by_its_ends() -> None:
    names = ["fc6", "relu6", "drop6", "fc7", "relu7", "drop7", "fc8"]
    ways = (names, ["fc6", "...", "fc8"], {"first": "fc6", "last": "fc8"})
    runs = [planner.load(vgg({**HEAD, "layers": way})).substitutions[0].removed for way in ways]
    assert runs[0] == runs[1] == runs[2] == ("flatten", *names)


def layered(draw: st.DrawFn, num_layers: int) -> Dnn:
    """Draw a network: every layer reads some of the earlier ones."""
    rows = []
    for index in range(num_layers):
        read = draw(st.sets(st.integers(0, index - 1), min_size=1, max_size=2)) if index else set()
        tensors = (Tensor(name=f"w{index}", num_elements=draw(st.integers(1, 9))),)
        layer = Layer(name=f"l{index}", kind="operator", output_shape=(draw(st.integers(1, 3)),), tensors=tensors)
        rows.append((layer, [f"l{one}" for one in sorted(read)]))
    return Dnn("drawn", rows)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Dnn, set[str]]:
    dnn = layered(draw, draw(st.integers(2, 8)))
    return dnn, set(draw(st.sets(st.sampled_from([layer.name for layer in dnn.layers]), min_size=1)))


@given(runs())
@settings(max_examples=150)
def test_a_run_is_taken_if_and_only_if_it_hangs_together_with_one_end_on_either_side(
    case: tuple[Dnn, set[str]],
) -> None:
    dnn, run = case
    edges = list(dnn.graph.edges)
    entries = {one for one, other in edges if other in run and one not in run}
    entries |= {"the input"} if any(not dnn.inputs_of(name) for name in run) else set()
    exits = {one for one, other in edges if one in run and other not in run}
    exits |= {name for name in run if not any(one == name for one, _ in edges)}
    undirected = nx.Graph([(one, other) for one, other in edges if {one, other} <= run])
    undirected.add_nodes_from(run)
    if len(entries) == len(exits) == 1 and nx.is_connected(undirected):
        entry, last = ends_of(dnn, run)
        assert ({entry or "the input"}, {last}) == (entries, exits)
    else:
        with pytest.raises(ValueError, match=r"run|hang together"):
            ends_of(dnn, run)


@given(st.data())
@settings(max_examples=150)
def test_putting_a_copy_in_place_of_a_run_changes_names_only(data: st.DataObject) -> None:
    dnn = data.draw(st.composite(layered)(data.draw(st.integers(2, 8))))
    names = [layer.name for layer in dnn.layers]
    fitting = [pair for pair in itertools.combinations_with_replacement(names, 2) if _is_run(dnn, pair)]
    run = run_between(dnn, *data.draw(st.sampled_from(fitting)))
    copies = {name: f"{name}-copy" for name in run}
    old = {layer.name: layer for layer in dnn.layers}
    copy = Dnn("copy", [
        (Layer(name=copies[name], kind=old[name].kind, output_shape=old[name].output_shape, tensors=old[name].tensors),
         [copies[one] for one in dnn.inputs_of(name) if one in copies])
        for name in run
    ])  # fmt: skip
    layers_that_mix = [name for name in run if 0 < len(set(dnn.inputs_of(name)) & set(run)) < len(dnn.inputs_of(name))]
    if layers_that_mix:  # such a layer reads the entry beside layers of its own run: a block cannot say that
        return
    check_fit(dnn, run, copy)
    after = rewrite(dnn, run, copy, name="after")
    renamed = nx.relabel_nodes(dnn.graph, copies)
    assert set(after.graph.edges) == set(renamed.edges)
    assert after.num_trainable == dnn.num_trainable
    seconds = {name: float(index + 1) for index, name in enumerate(names)}
    profile = Profile(forward_s=np.array([seconds[name] for name in names]), backward_s=np.zeros(len(names)))
    own = Profile(
        forward_s=np.array([10 * seconds[layer.name.removesuffix("-copy")] for layer in copy.layers]),
        backward_s=np.zeros(len(copy.layers)),
    )
    found = profile_after(dnn, after, profile, [(copy, own)])
    expected = sum(seconds.values()) + 9 * sum(seconds[name] for name in run)
    assert found.forward_s.sum() == pytest.approx(expected)


def _is_run(dnn: Dnn, pair: tuple[str, str]) -> bool:
    try:
        ends_of(dnn, run_between(dnn, *pair))
    except ValueError:
        return False
    return True


# -- what a spec may say ---------------------------------------------------------------------------------------------

MEASURED_LAYERS = [
    {"name": "a", "forward": "4 ms", "backward": "8 ms", "parameters": "4 MB", "output": "400 B"},
    {"name": "b", "forward": "4 ms", "backward": "8 ms", "parameters": "40 MB", "output": "400 B", "inputs": ["a"]},
    {"name": "c", "forward": "4 ms", "backward": "8 ms", "parameters": "4 MB", "output": "400 B", "inputs": ["b"]},
]
REPLACE_B = {"name": "s", "layers": ["b"]}


def measured(*substitutions: Mapping[str, Any]) -> dict[str, Any]:
    question = layers_question(*substitutions)
    dnn = {**question["dnn"], "layers": MEASURED_LAYERS, "profile_batch": 4}
    return {**question, "dnn": dnn}


TWO = ({**REPLACE_B, "by": block("new")}, {"name": "t", "layers": ["c"], "by": block("other")})
FAULTS: dict[str, tuple[Mapping[str, Any], str, str]] = {
    "an unknown layer": (vgg({**HEAD, "layers": ["fc9"]}), "dnn.substitutions.0", "Did you mean 'fc"),
    "an unknown block": (vgg({**HEAD, "by": "vgg16-conv-haed"}), "dnn.substitutions.0.by", "Did you mean 'vgg16-conv-head'"),
    "two runs": (vgg({**HEAD, "layers": ["conv1_1", "fc8"]}), "dnn.substitutions.0", "do not hang together"),
    "against the order": (vgg({**HEAD, "layers": {"first": "fc8", "last": "fc6"}}), "dnn.substitutions.0", "no path leads"),
    "an input": (vgg({**HEAD, "layers": ["input", "conv1_1"], "by": block("x", output="12845056 B")}), "dnn.substitutions.0", "network's input"),
    "no image": (vgg({**HEAD, "layers": ["fc8"]}), "dnn.substitutions.0", "needs (channels, height, width)"),
    "another shape": (vgg({**HEAD, "by": block("x")}), "dnn.substitutions.0", "100 (100 elements) at 'x'"),
    "a name that stays": (vgg({**HEAD, "by": block("conv1_1", output="4000 B")}), "dnn.substitutions.0", "keeps a layer 'conv1_1'"),
    "seconds on a counted network": (vgg({**HEAD, "by": {"layers": [{"name": "x", "forward": "1 ms", "output": "4000 B"}]}}), "dnn.substitutions.0", "Give multiply_adds"),
    "no seconds on a measured network": (measured({**REPLACE_B, "by": block("x")}), "dnn.substitutions.0", "'x' has no seconds"),
    "a shipped block on a measured network": (measured({**REPLACE_B, "by": "vgg16-conv-head"}), "dnn.substitutions.0", "Give its layers with forward"),
    "a block with another's input": (vgg({**HEAD, "by": {"layers": [{"name": "x", "inputs": ["pool5"]}]}}), "dnn.substitutions.0.by", "not in the block"),
    "a block with an input": (vgg({**HEAD, "by": {"layers": [{"name": "x", "kind": "input"}]}}), "dnn.substitutions.0.by", "has its own"),
    "a block with two ends": (layers_question({**REPLACE_B, "by": {"layers": [{"name": "x"}, {"name": "y"}]}}), "dnn.substitutions.0", "ends in several layers"),
    "one name twice": (layers_question(TWO[0], {**TWO[1], "name": "s"}), "dnn.substitutions", "two substitutions are called"),
    "one layer twice": (layers_question(TWO[0], {**TWO[1], "by": block("new")}), "dnn.substitutions", "both bring a layer"),
    "too many": (vgg(*([HEAD] * 7)), "dnn", "128 networks"),
    "an unknown pin": (vgg(HEAD, fix={"substitutions": ["haed"]}), "fix.substitutions", "Did you mean 'head'"),
    "a pin of nothing": (vgg(fix={"substitutions": ["head"]}), "fix.substitutions", "Describe it"),
    "pins that exclude each other": (
        layers_question(TWO[0], {**TWO[0], "name": "t"}, fix={"substitutions": ["s", "t"]}), "fix.substitutions", "take out the same layers"),
    "an unknown name in a configuration": (
        vgg(HEAD, configuration={"all_reduce": {"num_devices": 32}, "substitutions": ["x"]}), "configuration.substitutions", "no substitution 'x'"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_substitution_is_refused_at_its_place(name: str) -> None:
    question, field, words = FAULTS[name]
    with pytest.raises(SpecError) as caught:
        planner.load(question)
    assert [fault.field for fault in caught.value.faults] == [field]
    assert words in str(caught.value)


def test_seconds_of_a_block_are_of_the_measured_batch_and_survive_resolving() -> None:
    new = {"layers": [{"name": "x", "forward": "2 ms", "backward": "6 ms", "parameters": "4 MB", "output": "400 B"}]}
    problem = planner.load(measured({**REPLACE_B, "by": new}))
    again = planner.load(problem.resolved)
    for one in (problem, again):
        profile = network_of(one, ["s"]).profiles["rtx-3090"]
        assert profile.forward_s.tolist() == pytest.approx([1e-3, 0.5e-3, 1e-3])
        assert profile.backward_s.tolist() == pytest.approx([2e-3, 1.5e-3, 2e-3])


def test_every_shipped_block_names_its_source_and_what_is_known_of_accuracy() -> None:
    for name in data.block_names():
        assert data.block(name)["source"]
        assert data.block(name)["accuracy"]


# -- the choice ------------------------------------------------------------------------------------------------------


def test_substitutions_that_take_out_the_same_layer_are_alternatives() -> None:
    apart = planner.load(layers_question(*TWO))
    assert taken_networks(apart) == [(), ("s",), ("t",), ("s", "t")]
    same = planner.load(layers_question(TWO[0], {**TWO[0], "name": "t"}))
    assert taken_networks(same) == [(), ("s",), ("t",)]


def test_words_for_another_network() -> None:
    assert name_of(("a",), ("a", "b")) == "without b"
    assert name_of(("c",), ("a",)) == "with c, without a"


def test_the_replaced_head_is_chosen_on_the_paper_s_testbed() -> None:
    found = planner.plan(planner.load(vgg(HEAD)))
    assert found.substitutions == ("head",)
    assert found.status.value == "optimal"
    plain = planner.plan(planner.load(vgg()))
    without = next(one for one in found.alternatives if one.name.startswith("without head"))
    assert without.objective == pytest.approx(plain.objective)
    assert without.substitutions == ()
    loss = f"without head: {plain.objective / found.objective - 1:+.0%}"
    assert any(line.startswith(loss) for line in found.explanation)
    assert any("training loss of 1.39" in warning and "not modelled" in warning for warning in found.warnings)
    assert not any("not modelled" in warning for warning in plain.warnings)


def test_a_quarter_before_is_0_708_after_and_the_plan_takes_the_head() -> None:
    """As the case osf-layer-replacement: 0.25 without fusion; the new layers in one all-reduce."""
    machine = {
        "count": 4,
        "device": "rtx-2080-ti",
        "devices": 8,
        "inside": "pcie-3-x16",
        "network": "25 Gbps",
        "latency": "0 s",
    }
    fitted = {
        "utilisation": 0.62,
        "flop_per_multiply_add": 1,
        "update": "0 s",
        "algorithms": ["ring"],
        "bandwidth_efficiency": 0.52548,
    }
    question = {**vgg(HEAD), "cluster": {"machines": [machine]}, "calibration": fitted}

    def scaling(fusion: str, *taken: str) -> float:
        block = {"all_reduce": {"num_devices": 32, "fusion_groups": fusion}}
        asked = {**question, "configuration": block, "fix": {"substitutions": list(taken)}}
        return planner.predict(planner.load(asked)).scaling_factor

    assert scaling("none") == pytest.approx(0.25, abs=5e-5)
    assert scaling("one", "head") == pytest.approx(0.708, abs=5e-4)
    found = planner.plan(planner.load(question))
    assert found.substitutions == ("head",)
    assert found.prediction.scaling_factor > 0.9  # sent as they become ready, 62 MB hide behind the computation


def test_pins_decide_the_network() -> None:
    for taken in ([], ["head"]):
        found = planner.plan(planner.load(vgg(HEAD, fix={"substitutions": taken})))
        assert list(found.substitutions) == taken
        assert not any(one.name.startswith("with") for one in found.alternatives)


def test_a_substitution_that_does_not_pay_is_left() -> None:
    slow = {"name": "slow", "layers": ["b"], "by": block("x", multiply_adds=1e12)}
    found = planner.plan(planner.load(layers_question(slow)))
    assert found.substitutions == ()
    assert found.status.value == "optimal"
    assert any("no substitution (slow) would make it faster" in line for line in found.explanation)


sizes = st.tuples(st.sampled_from([1e7, 1e9, 4e9]), st.sampled_from(["4 kB", "4 MB", "400 MB"]))


@pytest.mark.usefixtures("wordless")
@given(st.lists(sizes, min_size=2, max_size=3), st.booleans())
@settings(max_examples=25)
def test_the_choice_is_the_best_of_all_networks_each_planned_alone(
    rows: list[tuple[float, str]], overlap: bool
) -> None:
    places = ["b", "b", "d"] if overlap else ["b", "c", "d"]
    substitutions = [
        {"name": f"s{index}", "layers": [place], "by": block(f"n{index}", multiply_adds=work, parameters=size)}
        for index, (place, (work, size)) in enumerate(zip(places, rows, strict=False))
    ]
    problem = planner.load(layers_question(*substitutions))
    alone = {}
    for taken in taken_networks(problem):
        pinned = planner.load(layers_question(*substitutions, fix={"substitutions": list(taken)}))
        plan = planner.plan(pinned)
        assert computation_bound(network_of(problem, taken)) <= plan.objective
        alone[taken] = plan.objective
    found = planner.plan(problem)
    assert found.status.value == "optimal"
    assert found.objective == pytest.approx(min(alone.values()))
    assert alone[found.substitutions] == pytest.approx(found.objective)


def test_a_plan_s_file_predicts_its_own_network_and_asks_the_whole_question_again(tmp_path: Path) -> None:
    found = planner.plan(planner.load(vgg(HEAD)))
    file = tmp_path / "plan.json"
    file.write_text(dump(found.to_dict()))
    problem = planner.load(file)
    assert problem.dnn.name == "vgg16 with head"
    assert planner.predict(problem).value_of(found.goal) == pytest.approx(found.objective)
    again = planner.plan(problem)
    assert again.substitutions == found.substitutions
    assert again.objective == pytest.approx(found.objective)
    assert [one.name for one in again.alternatives] == [one.name for one in found.alternatives]
    assert second_physics.check(problem, found).is_ok
