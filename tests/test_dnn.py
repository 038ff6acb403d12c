import copy
import pickle
import random
from dataclasses import FrozenInstanceError

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.dnn import Dnn, Layer, Tensor


def layer(name: str, *, weights: int = 0, outputs: int = 1) -> Layer:
    tensors = (Tensor(name=f"{name}.weight", num_elements=weights),) if weights else ()
    return Layer(name=name, kind="fully_connected", output_shape=(outputs,), tensors=tensors)


def names(dnn: Dnn) -> list[str]:
    return [one.name for one in dnn.layers]


DIAMOND = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


def diamond(order: str = "abcd") -> Dnn:
    return Dnn("diamond", [(layer(name), DIAMOND[name]) for name in order])


@st.composite
def wirings(draw: st.DrawFn) -> dict[str, list[str]]:
    """A graph without cycles, its layers listed in any order."""
    num_layers = draw(st.integers(1, 8))
    inputs = {
        f"n{later}": [f"n{earlier}" for earlier in range(later) if draw(st.booleans())] for later in range(num_layers)
    }
    return {name: inputs[name] for name in draw(st.permutations(list(inputs)))}


@given(wirings())
def test_every_layer_comes_after_all_that_it_reads(wiring: dict[str, list[str]]) -> None:
    dnn = Dnn("random", [(layer(name), inputs) for name, inputs in wiring.items()])
    position = {name: index for index, name in enumerate(names(dnn))}
    assert sorted(position) == sorted(wiring)
    assert all(position[read] < position[name] for name, inputs in wiring.items() for read in inputs)
    assert all(list(dnn.inputs_of(name)) == inputs for name, inputs in wiring.items())


@given(st.permutations(list(DIAMOND)))
def test_layers_that_may_stand_in_either_order_stand_as_they_were_given(order: list[str]) -> None:
    found = names(diamond("".join(order)))
    assert found == ["a", *sorted("bc", key=order.index), "d"]


def test_a_cycle_is_named() -> None:
    rows = [(layer("a"), ("c",)), (layer("b"), ("a",)), (layer("c"), ("b",)), (layer("d"), ("c",))]
    with pytest.raises(ValueError, match=r"form a cycle: a -> b -> c -> a; remove one of these edges"):
        Dnn("cyclic", rows)


def test_a_layer_that_reads_itself_is_a_cycle() -> None:
    with pytest.raises(ValueError, match=r"form a cycle: a -> a;"):
        Dnn("cyclic", [(layer("a"), ("a",))])


def test_a_name_used_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="layer 'a' stands twice; give every layer its own name"):
        Dnn("twins", [(layer("a"), ()), (layer("a"), ())])


def test_an_unknown_input_is_refused() -> None:
    with pytest.raises(ValueError, match="layer 'a' reads 'ghost', which does not exist"):
        Dnn("haunted", [(layer("a"), ("ghost",))])


def test_a_network_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no layer"):
        Dnn("void", [])


def test_the_graph_is_a_frozen_networkx_graph() -> None:
    dnn = diamond()
    assert isinstance(dnn.graph, nx.DiGraph)
    with pytest.raises(nx.NetworkXError, match="Frozen graph"):
        dnn.graph.add_edge("d", "a")
    with pytest.raises(FrozenInstanceError):
        dnn.layers[0].name = "other"  # type: ignore[misc]


def test_edges_carry_what_the_earlier_layer_puts_out() -> None:
    dnn = Dnn("chain", [(layer("a", outputs=7), ()), (layer("b", outputs=3), ("a",))])
    assert dnn.graph.edges["a", "b"]["num_elements"] == 7


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda dnn: pickle.loads(pickle.dumps(dnn))], ids=["copy", "pickle"])
def test_a_network_survives_the_trip_to_a_worker_process(clone: "type[Dnn]") -> None:
    dnn = diamond("dcba")
    twin: Dnn = clone(dnn)  # type: ignore[arg-type,call-arg]
    assert twin.layers == dnn.layers
    assert list(twin.graph.edges) == list(dnn.graph.edges)
    assert nx.is_frozen(twin.graph)


def test_totals_add_up_by_role() -> None:
    norm = Layer(
        name="norm",
        kind="batch_norm",
        output_shape=(4, 2, 2),
        tensors=tuple(Tensor(name=role, num_elements=4, role=role) for role in ("scale", "shift", "moving")),
    )
    relu = Layer(name="relu", kind="activation", output_shape=(4, 2, 2), is_in_place=True)
    image = Layer(name="image", kind="input", output_shape=(3, 2, 2))
    convolution = Layer(
        name="convolution",
        kind="convolution",
        output_shape=(4, 2, 2),
        num_multiply_adds=12 * 4,
        tensors=(Tensor(name="weight", num_elements=12), Tensor(name="bias", num_elements=4, role="bias")),
    )
    rows = [(image, ()), (convolution, ("image",)), (norm, ("convolution",)), (relu, ("norm",))]
    random.Random(0).shuffle(rows)
    dnn = Dnn("block", rows)
    assert (dnn.num_trainable, dnn.num_weights, dnn.num_moving) == (12 + 4 + 4 + 4, 12, 4)
    assert (dnn.num_weight_layers, dnn.num_trainable_tensors, dnn.num_multiply_adds) == (1, 4, 48)
    assert (dnn.num_stored_elements, dnn.num_input_elements) == (12 + 16 + 16, 12)
