"""Layers of an ONNX graph: one for each operator whose output depends on the inputs' numbers, branches kept.

Constants, and what follows from shapes alone, are no layers; their weights belong to the operators that use them.
"""

from collections import Counter
from collections.abc import Sequence
from math import prod

from planner.dnn import Layer, Tensor
from planner.importers.onnx_model.kinds import is_in_place, kind_of, sample_shape, window_of
from planner.importers.onnx_model.parameters import Parameters
from planner.importers.onnx_model.plain import FLOATS, OnnxNode, known, shown
from planner.importers.onnx_model.scope import Scope
from planner.importers.onnx_model.view import View
from planner.importers.onnx_model.work import Doubts, is_known, work_of

__all__ = ["LayerList"]

_MOST_NAME = 200
_MOST_ELEMENTS = 2**50
_CHANNELS_FIRST = ("convolution", "pooling", "batch_norm")


class LayerList:
    """The layers of a graph in its order, with the names that each one reads.

    Raises
    ------
    ValueError
        If the graph contradicts itself, or an operator is beyond all reason.
    """

    def __init__(self, scope: Scope, inputs: Sequence[str], batch_size: int) -> None:
        stored = [root.tensor for name in scope.graph.tensors for root in scope.roots_of(name)]
        tables = {
            root.origin
            for node in scope.graph.nodes
            if node.op_type == "Gather" and node.inputs
            for root in scope.roots_of(node.inputs[0])
        }
        has_initializers = any(one.dtype in FLOATS and one.dims for one in stored)
        self.parameters = Parameters(has_initializers, frozenset(tables))
        self.doubts = Doubts()
        self.element_flop = 0.0
        self.kinds_of_operators: Counter[str] = Counter()
        self.layers: list[tuple[Layer, tuple[str, ...]]] = []
        self._scope, self._batch_size = scope, batch_size
        self._names: set[str] = set()
        self._numbers: Counter[str] = Counter()  # how often a name was wanted again
        self._source: dict[str, str] = {}
        nodes = [node for node in scope.graph.nodes if not scope.is_folded(node)]
        self._used = {name for node in nodes for name in scope.reads(node)} | set(scope.graph.outputs)
        for name in inputs:
            if name in self._used:
                self._append_input(name)
        for index, node in enumerate(scope.graph.nodes):
            if not scope.is_folded(node):
                self._append(node, index)

    def unused(self) -> list[str]:
        """Return the stored arrays of broken numbers that no operator reads."""
        scope = self._scope
        read = {name for node in scope.graph.nodes for name in scope.reads(node)} | set(scope.graph.outputs)
        tensors = scope.graph.tensors.values()
        return [one.name for one in tensors if one.dtype in FLOATS and one.dims and one.name not in read]

    def _append_input(self, name: str) -> None:
        """Append the layer of an input of the graph."""
        shape = self._sample_shape(name, "input")
        layer = Layer(name=self._unique(name), kind="input", output_shape=shape)
        self._source[name] = layer.name
        self.layers.append((layer, ()))

    def _append(self, node: OnnxNode, index: int) -> None:
        """Append the layer of an operator."""
        name = self._unique(node.name or f"{node.op_type}_{index}")
        work = work_of(node, self._scope, self.doubts)
        shape = self._output_shape(node)
        self.element_flop += work.element_flop / self._batch_size
        self.kinds_of_operators[node.op_type] += 1
        layer = Layer(
            name=name,
            kind=kind_of(node, self._scope, shape),
            output_shape=shape,
            num_multiply_adds=_share(work.multiply_adds, self._batch_size),
            tensors=self._tensors(node, name, self._scope),
            is_in_place=is_in_place(node, self._scope),
            window=window_of(View(node, self._scope.shape_of, self._scope.values_of)),
        )
        reads = (self._source[one] for one in self._scope.reads(node) if one in self._source)
        self.layers.append((layer, tuple(dict.fromkeys(reads))))
        self._source.update((one, name) for one in node.outputs if one)

    def _tensors(self, node: OnnxNode, name: str, scope: Scope) -> tuple[Tensor, ...]:
        """Return the parameters of an operator and of its bodies."""
        found = self.parameters.of(node, name, scope, is_known=is_known(node))
        for body in node.graphs:
            inner = Scope(body, scope)
            for one in body.nodes:
                if not inner.is_folded(one):
                    found += self._tensors(one, name, inner)
        return found

    def _output_shape(self, node: OnnxNode) -> tuple[int, ...]:
        """Return one sample's part of the output; of several that are used, of all together."""
        used = [name for name in node.outputs if name in self._used]
        main = used[0] if used else next((name for name in node.outputs if name), "")
        kind = kind_of(node, self._scope, ())
        if len(used) < 2:
            return self._sample_shape(main, kind, node)
        shapes = [self._sample_shape(name, kind, node) for name in used]
        return (sum(prod(shape) for shape in shapes),)

    def _sample_shape(self, name: str, kind: str, node: OnnxNode | None = None) -> tuple[int, ...]:
        """Return one sample's part of a value; (1,) where its size is not known, which is noted."""
        shape = known(self._scope.shape_of(name))
        if shape is None:
            self.doubts.unsized[shown(node.op_type if node else name)] += 1
            return (1,)
        if prod(shape) > _MOST_ELEMENTS or min(shape, default=0) < 0:
            raise ValueError(f"the value {name!r} has the impossible dimensions {str(list(shape))[:80]}")
        return sample_shape(shape, self._batch_size, has_channels_first=kind in _CHANNELS_FIRST)

    def _unique(self, wanted: str) -> str:
        """Return a name that no layer has yet; a number is appended where one has it."""
        stem = shown(wanted, _MOST_NAME) or "layer"
        name = stem
        while name in self._names:
            self._numbers[stem] += 1
            name = f"{stem}_{self._numbers[stem] + 1}"
        self._names.add(name)
        return name


def _share(total: int, batch_size: int) -> int:
    """Return one sample's share of a batch's work, rounded where the work does not grow with the batch."""
    return total // batch_size if total % batch_size == 0 else round(total / batch_size)
