"""The network to train: a directed graph of layers, behind a thin typed wrapper round networkx.

Everything is counted per sample and in elements; bytes and seconds belong to a data type, a batch and a device, so they
live in :class:`planner.cost.Profile` and in the cost models. Order is topological, ties by insertion.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Literal, get_args

from planner.frozen import frozen
from planner.letters import visible
from planner.shown import Shown
from planner.transformer import Transformer

if TYPE_CHECKING:
    import networkx as nx

MOST_LAYERS = 50_000  # of a file that a person or a profiler wrote: a thousand times what is usual
MOST_INPUTS = 1_000_000  # of all layers together
_MOST_OF_CYCLE = 8  # edges that a message names
OperatorKind = Literal[
    "convolution",  # dense, grouped or depthwise, as its product says
    "matmul",  # by weights
    "batched_matmul",  # of two activations
    "attention",  # fused: scores stay on the chip
    "batch_norm",
    "norm",  # of every sample by itself: layer, instance, root mean square
    "group_norm",  # of an image, over groups of its channels
    "softmax",
    "element_wise",  # activations, dropout
    "scaling",  # by a number
    "multiplication",  # number by number, of two tensors that both have a gradient
    "addition",  # whose gradient is passed on as it is
    "pooling",
    "reduction",  # means and sums
    "embedding",
    "copy",  # concatenations, changes of layout or type
    "slice",  # a part of a tensor, read where it lies: its gradient is written into one of the whole
    "recurrent",  # one product for each step of a sequence, one step after the other
]
OPERATOR_KINDS: tuple[str, ...] = get_args(OperatorKind)
PRODUCT_KINDS = ("convolution", "matmul", "batched_matmul", "attention", "recurrent")  # those that multiply matrices

_MOVING = "moving"


@frozen
class Tensor:
    """A stored array of a layer. ``role``: weight, bias, scale, shift (trained) or moving (batch-norm statistics)."""

    name: str
    num_elements: int
    role: str = "weight"

    @property
    def is_trainable(self) -> bool:
        """Whether it has a gradient, which has to be exchanged."""
        return self.role != _MOVING


@frozen
class Window:
    """What one output of a convolution or a pool reads: a square that slides over the padded input."""

    kernel: int
    stride: int = 1
    padding: int = 0


@frozen
class Product:
    """``count`` products of a ``rows x inner`` by an ``inner x columns`` matrix, for one sample.

    ``rows`` may be broken: the share of one sample's tokens that an expert gets.
    """

    rows: float
    inner: int
    columns: int
    count: int

    def __str__(self) -> str:
        """Return ``96 x (2048 x 128 x 2048)``: rows, inner width and columns."""
        once = f"{self.rows:.12g} x {self.inner} x {self.columns}"
        return once if self.count == 1 else f"{self.count} x ({once})"


@frozen
class Operator:
    """One operator of a layer: what its forward pass computes and moves for one sample.

    What backward does follows from it: :mod:`planner.models.kernels`.
    """

    kind: str  # one of :data:`OPERATOR_KINDS`
    num_multiply_adds: int = 0  # forward
    # read_elements, written_elements: of activations; weights are left out
    read_elements: int = 0
    written_elements: int = 0
    weight_elements: int = 0  # read once, whatever the batch
    # the shape of what is multiplied: of a convolution its positions, what one number of its output reads, and the
    # output's channels, ``count`` groups of them; of a fused attention that of its scores
    product: Product | None = None
    num_kernels: int = 1  # launched forward


@frozen
class Layer:
    """One operator."""

    name: str
    # convolution, fully_connected, batch_norm, pooling, activation, add, concatenate, dropout, flatten, input, ...
    kind: str
    # of one sample: (channels, height, width) or (features,); (features, tokens, 1) of a sequence
    output_shape: tuple[int, ...]
    # of one sample, forward; 0 where nothing is multiplied and added up. Products of two activations (attention) count,
    # although they have no weights. These are the connections of the Adam model
    num_multiply_adds: int = 0
    tensors: tuple[Tensor, ...] = ()  # in order of registration
    # the output overwrites the input, or nobody reads it again, so that it is not kept for the backward pass
    is_in_place: bool = False
    # of a convolution or a pool, where it is known; a pool without one reads its whole channel
    window: Window | None = None
    # what it computes, where that was seen; empty where it follows from the kind and the shapes:
    # :func:`planner.models.operators.operators_of`
    operators: tuple[Operator, ...] = ()
    # what the backward pass reads of one sample beside the output, where numbers take four bytes: copies of what is
    # overwritten, indices of maxima, masks
    kept_beside_bytes: int = 0

    @property
    def num_output_elements(self) -> int:
        """Elements of the output of one sample; the neurons of the Adam model."""
        return prod(self.output_shape)

    @property
    def num_stored_elements(self) -> int:
        """Elements of the output that are kept from forward to backward, for one sample."""
        return 0 if self.is_in_place else self.num_output_elements

    @property
    def num_trainable(self) -> int:
        """Trainable parameters."""
        return sum(tensor.num_elements for tensor in self.tensors if tensor.is_trainable)

    @property
    def num_weights(self) -> int:
        """Weights alone, without biases and batch norm."""
        return sum(tensor.num_elements for tensor in self.tensors if tensor.role == "weight")

    @property
    def num_moving(self) -> int:
        """Batch-norm statistics: stored, not trained."""
        return sum(tensor.num_elements for tensor in self.tensors if not tensor.is_trainable)


@frozen
class Repeat:
    """Consecutive layers that are copies of one block: ``count`` times ``num_layers`` layers from index ``first`` on.

    Repeats of one ``kind`` hold copies of the same block.
    """

    first: int
    num_layers: int
    count: int
    kind: str


class Dnn(Shown):
    """A network as a graph: nodes are layer names with a ``layer``, edges carry ``num_elements`` per sample.

    Parameters
    ----------
    name
        For messages and reports.
    layers
        Each layer with the names of the layers whose outputs it reads, in any order that names no unknown layer.
    source
        Where the shapes or figures come from.
    dataset_samples
        Of the data set the network is usually trained on, where there is one; a spec overrides it.
    transformer
        The sizes that the layers were made of, where the network is a transformer.
    repeats
        Which consecutive layers are copies of one block, indices into ``layers``.

    Raises
    ------
    ValueError
        If a name is used twice or unknown, there is no layer, or the graph has a cycle (which is named).
    """

    def __init__(
        self,
        name: str,
        layers: Iterable[tuple[Layer, Sequence[str]]],
        *,
        source: str = "",
        dataset_samples: int | None = None,
        transformer: Transformer | None = None,
        repeats: Sequence[Repeat] = (),
    ) -> None:
        self.name = name
        self.source = source
        self.dataset_samples = dataset_samples
        self.transformer = transformer
        self.repeats = tuple(repeats)
        wanted = list(layers)
        if (number := sum(len(inputs) for _, inputs in wanted)) > MOST_INPUTS:
            raise ValueError(f"its layers have {number} inputs, more than {MOST_INPUTS}; give the file of one network")
        given: dict[str, Layer] = {}
        for layer, _ in wanted:
            if layer.name in given:
                raise ValueError(f"layer {layer.name!r} stands twice; give every layer its own name")
            given[layer.name] = layer
        if not wanted:
            raise ValueError("there is no layer")
        for layer, inputs in wanted:
            for source_name in inputs:
                if source_name not in given:
                    what = f"layer {layer.name!r} reads {source_name!r}, which does not exist"
                    raise ValueError(f"{what}. Name a layer, or add it.")
        self._given = given
        self._inputs = {layer.name: tuple(dict.fromkeys(inputs)) for layer, inputs in wanted}
        # In topological order, ties by insertion.
        position = {layer_name: index for index, layer_name in enumerate(given)}
        names: Iterable[str] = given
        if any(position[first] >= position[then] for then, inputs in self._inputs.items() for first in inputs):
            import networkx as nx  # noqa: PLC0415 - takes a while, and files seldom have it so

            try:
                names = list(nx.lexicographical_topological_sort(self.graph, key=position.__getitem__))
            except nx.NetworkXUnfeasible:
                edges = nx.find_cycle(self.graph)
                cycle = " -> ".join(
                    [*(edge[0] for edge in edges[:_MOST_OF_CYCLE]), "..." if edges[_MOST_OF_CYCLE:] else edges[0][0]]
                )
                raise ValueError(f"the layers form a cycle: {cycle}; remove one of these edges") from None
        self.layers: tuple[Layer, ...] = tuple(given[layer_name] for layer_name in names)

    def __repr__(self) -> str:
        """Return its name, layers and parameters."""
        return f"<Dnn {self.name!r}: {len(self.layers):,} layers, {self.num_trainable:,} parameters>"

    def without_repeats(self) -> "Dnn":
        """Return the network with nothing said of its repeated blocks, so that it may be cut anywhere."""
        return Dnn(
            self.name,
            [(layer, self.inputs_of(layer.name)) for layer in self.layers],
            source=self.source,
            dataset_samples=self.dataset_samples,
            transformer=self.transformer,
        )

    def named(self, name: str) -> "Dnn":
        """Return the network under another name."""
        return Dnn(
            name,
            [(layer, self.inputs_of(layer.name)) for layer in self.layers],
            source=self.source,
            dataset_samples=self.dataset_samples,
            transformer=self.transformer,
            repeats=self.repeats,
        )

    def with_visible_names(self) -> "Dnn":
        """Return the network with what cannot be printed of its names spelled out; itself where all can be.

        Raises
        ------
        ValueError
            If two names are equal then.
        """
        tensors = [tensor.name for layer in self.layers for tensor in layer.tensors]
        names = [self.name, self.source, *(text for one in self.layers for text in (one.name, one.kind)), *tensors]
        if all(map(str.isprintable, names)):
            return self
        rows = []
        for layer in self.layers:
            own = tuple(replace(tensor, name=visible(tensor.name)) for tensor in layer.tensors)
            shown = replace(layer, name=visible(layer.name), kind=visible(layer.kind), tensors=own)
            rows.append((shown, [visible(name) for name in self.inputs_of(layer.name)]))
        return Dnn(
            visible(self.name),
            rows,
            source=visible(self.source),
            dataset_samples=self.dataset_samples,
            transformer=self.transformer,
            repeats=self.repeats,
        )

    @cached_property
    def graph(self) -> "nx.DiGraph[str]":
        """The same as a networkx graph, frozen."""
        import networkx as nx  # noqa: PLC0415 - takes a while

        graph: nx.DiGraph[str] = nx.DiGraph(name=self.name)
        graph.add_nodes_from((name, {"layer": layer}) for name, layer in self._given.items())
        for name, inputs in self._inputs.items():
            for read in inputs:
                graph.add_edge(read, name, num_elements=self._given[read].num_output_elements)
        nx.freeze(graph)
        return graph

    def inputs_of(self, name: str) -> tuple[str, ...]:
        """Return the names of the layers that ``name`` reads, in the order they were given."""
        return self._inputs[name]

    @cached_property
    def trained_layers(self) -> tuple[tuple[str, int, int], ...]:
        """Name, trainable parameters and index of what is exchanged as one, in forward order.

        Every layer with parameters; batch norm goes with the layer before it.
        """
        rows: list[tuple[str, int, int]] = []
        for index, layer in enumerate(self.layers):
            number = sum(tensor.num_elements for tensor in layer.tensors if tensor.is_trainable)
            if not any(tensor.is_trainable for tensor in layer.tensors):
                continue
            if layer.kind == "batch_norm" and rows:
                name, earlier, place = rows[-1]
                rows[-1] = (name, earlier + number, place)
            else:
                rows.append((layer.name, number, index))
        return tuple(rows)

    @cached_property
    def trained_tensors(self) -> tuple[tuple[str, int, int], ...]:
        """Name, elements and layer's index of every trainable tensor, in forward order."""
        return tuple(
            (tensor.name, tensor.num_elements, index)
            for index, layer in enumerate(self.layers)
            for tensor in layer.tensors
            if tensor.is_trainable
        )

    @cached_property
    def num_trainable(self) -> int:
        """Trainable parameters, in total."""
        return sum(layer.num_trainable for layer in self.layers)

    @cached_property
    def num_weights(self) -> int:
        """Weights without biases and batch norm, in total."""
        return sum(layer.num_weights for layer in self.layers)

    @cached_property
    def num_moving(self) -> int:
        """Batch-norm statistics, in total."""
        return sum(layer.num_moving for layer in self.layers)

    @cached_property
    def num_multiply_adds(self) -> int:
        """Multiply-adds of one sample's forward pass."""
        return sum(layer.num_multiply_adds for layer in self.layers)

    @cached_property
    def num_stored_elements(self) -> int:
        """Elements of activations that one sample keeps for the backward pass."""
        return sum(layer.num_stored_elements for layer in self.layers)

    @cached_property
    def num_input_elements(self) -> int:
        """Elements of one sample as it reaches the device."""
        return sum(layer.num_output_elements for layer in self.layers if layer.kind == "input")

    @cached_property
    def num_weight_layers(self) -> int:
        """Layers with weights: convolutions (shortcuts included) and fully-connected ones."""
        return sum(1 for layer in self.layers if layer.num_weights)

    @cached_property
    def num_trainable_tensors(self) -> int:
        """Tensors with a gradient."""
        return sum(tensor.is_trainable for layer in self.layers for tensor in layer.tensors)
