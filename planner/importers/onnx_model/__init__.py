"""ONNX models: layers, branches, parameters and work of a graph, read from its shapes alone; no weight is ever read.

One layer for each operator whose output depends on the inputs' numbers. Constants, and what follows from shapes alone,
are no layers; their weights belong to the operators that use them, each stored tensor to the first. See
:mod:`.work` for what is counted, ``docs/onnx.md`` for what is assumed.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from planner.dnn import Dnn, Layer, Operator, Product, Tensor, Window
from planner.importers.imported import Imported, UniqueNames, first_names, repeats_of
from planner.importers.onnx_model.file import Batch, data_inputs, load_model, set_sizes
from planner.importers.onnx_model.graph import FLOATS, OnnxNode, Root, Scope, known, shown
from planner.importers.onnx_model.shapes import plain_graph
from planner.importers.onnx_model.work import Uncounted, UnknownShapeError, View, is_counted, work_of
from planner.importers.text import refuse

__all__ = ["read_onnx"]

_MOST_NAME = 200
_MOST_ELEMENTS = 2**50
_DTYPES = {"FLOAT": "fp32", "FLOAT16": "fp16", "BFLOAT16": "bf16"}


def read_onnx(path: Path, *, sizes: Mapping[str, int] | None = None) -> Imported:
    """Return the network of an ONNX file.

    Parameters
    ----------
    path
        Of the graph; files with its weights need not be there, but must be meant to lie in its folder.
    sizes
        Of symbolic dimensions by name, for one sample: ``{"sequence": 128}``. A dimension without a name is called by
        its input and axis, ``tokens.1``. The batch needs none.

    Notes
    -----
    ``facts`` holds ``element_flop`` (FLOP of one sample, forward, beside the multiply-adds) and ``num_operators``.
    A file of up to 2 GiB is read whole; the data of its large tensors is thrown away at once.

    Raises
    ------
    SpecError
        If it is no ONNX model that can be read (see :func:`.file.load_model`), a dimension has no
        size, or the graph contradicts itself.
    """
    model = load_model(path)
    batch = set_sizes(model, sizes or {}, path)
    inputs = [one.name for one in data_inputs(model)]
    try:
        scope = Scope(plain_graph(model, path))
        found = _Layers(scope, inputs, batch.size)
        if not any(layer.kind != "input" for layer, _ in found.layers):
            raise ValueError("no operator reads the inputs")
        repeats = repeats_of([layer for layer, _ in found.layers], [reads for _, reads in found.layers])
        dnn = Dnn(path.stem or "onnx", found.layers, source=f"ONNX file {path.name}", repeats=repeats)
    except (ValueError, RecursionError) as error:
        raise refuse(path, f"the graph cannot be: {error}.", "Export the model again, or mend it.") from None
    dtypes = found.parameters.dtypes
    return Imported(
        dnn=dnn,
        dtype=_DTYPES.get(max(dtypes, key=lambda name: (dtypes[name], name))) if dtypes else None,
        facts={"element_flop": found.element_flop, "num_operators": found.num_operators},
        notes=_notes(found, batch),
        warnings=(*batch.warnings, *found.parameters.warnings(), *found.uncounted.warnings()),
    )


def _notes(found: "_Layers", batch: Batch) -> tuple[str, ...]:
    notes = [*batch.notes, *found.parameters.notes(found.unused())]
    layers = [layer for layer, _ in found.layers]
    convolutions = [layer for layer in layers if layer.kind == "convolution"]
    have_biases = all(any(tensor.role == "bias" for tensor in layer.tensors) for layer in convolutions)
    if convolutions and have_biases and not any(layer.kind in ("batch_norm", "norm") for layer in layers):
        notes.append(
            "There is no batch norm, and every convolution has a bias: if the network is trained with batch norm, the "
            "export has folded it into the convolutions. Export it in training mode then."
        )
    return tuple(notes)


class _Layers:
    """The layers of a graph in its order, with the names that each one reads.

    Raises
    ------
    ValueError
        If the graph contradicts itself, or an operator is beyond all reason.
    """

    def __init__(self, scope: Scope, inputs: Sequence[str], batch_size: int) -> None:
        graph = scope.graph
        stored = [root.tensor for name in graph.tensors for root in scope.roots_of(name)]
        gathers = [node for node in graph.nodes if node.op_type == "Gather" and node.inputs]
        tables = {root.origin for node in gathers for root in scope.roots_of(node.inputs[0])}
        has_initializers = any(one.dtype in FLOATS and one.dims for one in stored)
        self.parameters = _Parameters(has_initializers, frozenset(tables))
        self.uncounted = Uncounted()
        self.element_flop = 0.0
        self.num_operators = 0
        self.layers: list[tuple[Layer, tuple[str, ...]]] = []
        self._scope, self._batch_size = scope, batch_size
        self._names = UniqueNames()
        self._source: dict[str, str] = {}
        self._expanded: set[str] = set()  # values that repeat numbers which stand once
        nodes = [node for node in graph.nodes if not scope.is_folded(node)]
        self._used = {name for node in nodes for name in node.reads} | set(graph.outputs)
        for name in inputs:
            if name in self._used:
                shape = self._sample_shape(name, "input")
                self._source[name] = self._names.take(_stem(name))
                self.layers.append((Layer(name=self._source[name], kind="input", output_shape=shape), ()))
        for index, node in enumerate(graph.nodes):
            if not scope.is_folded(node):
                self._append(node, index)

    def unused(self) -> list[str]:
        """Return the stored arrays of broken numbers that no operator reads."""
        graph = self._scope.graph
        read = {name for node in graph.nodes for name in node.reads} | set(graph.outputs)
        return [one.name for one in graph.tensors.values() if one.dtype in FLOATS and one.dims and one.name not in read]

    def _append(self, node: OnnxNode, index: int) -> None:
        name = self._names.take(_stem(node.name or f"{node.op_type}_{index}"))
        work = work_of(node, self._scope, self.uncounted)
        shape = self._output_shape(node)
        self.element_flop += work.element_flop / self._batch_size
        self.num_operators += 1
        share, rest = divmod(work.multiply_adds, self._batch_size)
        kind = _kind_of(node, self._scope, shape)
        operators = self._operators(node, kind, share) if share and not rest else ()
        is_copied = node.op_type == "Reshape" and not self._expanded.isdisjoint(node.inputs[:1])
        if node.op_type == "Expand":
            self._expanded.update(node.outputs)
        layer = Layer(
            name=name,
            kind=kind,
            output_shape=shape,
            # Rounded where the work does not grow with the batch.
            num_multiply_adds=round(work.multiply_adds / self._batch_size) if rest else share,
            operators=operators,
            tensors=self._tensors(node, name, self._scope),
            is_in_place=not is_copied and (kind == "slice" or _is_in_place(node, self._scope)),
            window=_window_of(View(node, self._scope)),
            kept_beside_bytes=4 * _KEPT_OF_STATES.get(node.op_type, 0) * sum(one.written_elements for one in operators),
        )
        reads = (self._source[one] for one in node.reads if one in self._source)
        self.layers.append((layer, tuple(dict.fromkeys(reads))))
        self._source.update((one, name) for one in node.outputs if one)

    def _operators(self, node: OnnxNode, kind: str, num_multiply_adds: int) -> tuple[Operator, ...]:
        """Return the product of an operator, of one sample, where its layer's kind and shape do not tell it."""
        try:
            product, read, written, kernels = _product_of(View(node, self._scope), kind, self._batch_size)
        except (UnknownShapeError, ZeroDivisionError):
            return ()
        if product.rows * product.inner * product.columns * product.count != num_multiply_adds:
            return ()
        weights = [
            known(self._scope.shape_of(name)) or () for name in node.inputs if name and self._scope.is_fixed(name)
        ]
        found = Operator(
            kind="batched_matmul" if kind == "attention" else kind,
            num_multiply_adds=num_multiply_adds,
            read_elements=read,
            written_elements=written,
            weight_elements=sum(prod(shape) for shape in weights if shape),
            product=product,
            num_kernels=kernels,
        )
        return (found,)

    def _tensors(self, node: OnnxNode, name: str, scope: Scope) -> tuple[Tensor, ...]:
        """Return the parameters of an operator and of its bodies."""
        found = self.parameters.of(node, name, scope)
        for body in node.graphs:
            inner = Scope(body, scope)
            for one in body.nodes:
                if not inner.is_folded(one):
                    found += self._tensors(one, name, inner)
        return found

    def _output_shape(self, node: OnnxNode) -> tuple[int, ...]:
        """Return one sample's part of the output; of several that are used, of all together."""
        used = [name for name in node.outputs if name in self._used] or [name for name in node.outputs if name][:1]
        kind = _kind_of(node, self._scope, ())
        shapes = [self._sample_shape(name, kind, node) for name in used or [""]]
        return shapes[0] if len(shapes) == 1 else (sum(map(prod, shapes)),)

    def _sample_shape(self, name: str, kind: str, node: OnnxNode | None = None) -> tuple[int, ...]:
        """Return one sample's part of a value as :class:`planner.dnn.Layer` has it; (1,) where its size is not known.

        The dimension of the batch goes: the first one if it is the batch or a multiple of it (tokens of all samples in
        a row), else the first that is. What remains is (features,); (features, tokens, 1) of two dimensions, the last
        one being features, or the first one where an operator has its channels first; three as they are; of more the
        inner ones are taken together.
        """
        shape = known(self._scope.shape_of(name))
        if shape is None:
            self.uncounted.unsized[shown(node.op_type if node else name)] += 1
            return (1,)
        if prod(shape) > _MOST_ELEMENTS or min(shape, default=0) < 0:
            raise ValueError(f"the value {name!r} has the impossible dimensions {str(list(shape))[:80]}")
        rest = list(shape)
        multiples = [axis for axis, size in enumerate(rest) if size % self._batch_size == 0]
        if self._batch_size in rest:
            rest.remove(self._batch_size)
        elif multiples:
            rest[multiples[0]] //= self._batch_size
        rest = rest or [1]
        if len(rest) == 2:
            is_channels_first = kind in ("convolution", "pooling", "batch_norm")
            return (rest[0], rest[1], 1) if is_channels_first else (rest[1], rest[0], 1)
        return tuple(rest) if len(rest) <= 3 else (rest[0], prod(rest[1:-1]), rest[-1])


def _product_of(view: View, kind: str, batch_size: int) -> tuple[Product, int, int, int]:
    """Return a product of one sample, the numbers that it reads and writes besides weights, and its kernels.

    Two activations are multiplied head by head; a transposed convolution multiplies every place of its input by all
    filters; a recurrent layer has a product for each step and direction.
    """
    if view.node.op_type in _OF_MATRICES and kind == "attention":
        first, shape = view.input(), view.output()
        if len(shape) < 3:
            raise UnknownShapeError
        count, (rows, columns) = prod(shape[:-2]) // batch_size, shape[-2:]
        inner = first[-2] if view.node.integer("transA") else first[-1]
        product = Product(rows=rows, inner=inner, columns=columns, count=count)
        return product, count * inner * (rows + columns), count * rows * columns, 1
    if view.node.op_type == "ConvTranspose":
        images, weight, groups = view.input(), view.input(1), view.node.integer("group", 1)
        product = Product(rows=prod(images[2:]), inner=weight[0] // groups, columns=prod(weight[1:]), count=groups)
        return product, prod(images[1:]), view.num_outputs() // images[0], 1
    if kind == "recurrent":
        steps = view.input(rank=3)[view.node.integer("layout")]
        directions, columns, width = view.input(1, rank=3)
        hidden = view.input(2, rank=3)[2]
        kernels = steps * directions
        product = Product(rows=1, inner=width + hidden, columns=columns, count=kernels)
        return product, steps * width, kernels * hidden, kernels
    raise UnknownShapeError


# -- what a layer is called, and what it keeps -------------------------------------------------------------------------

_KINDS = {
    name: kind
    for kind, names in {
        "convolution": "Conv ConvInteger ConvTranspose DeformConv FusedConv QLinearConv",
        "batch_norm": "BatchNormalization",
        "norm": "GroupNorm GroupNormalization InstanceNormalization LRN LayerNormalization LpNormalization "
        "MeanVarianceNormalization RMSNormalization SimplifiedLayerNormalization SkipGroupNorm "
        "SkipLayerNormalization SkipSimplifiedLayerNormalization",
        "pooling": "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool MaxRoiPool "
        "QLinearAveragePool QLinearGlobalAveragePool RoiAlign",
        "activation": "BiasGelu BiasSplitGelu Celu Clip Elu Erf FastGelu Gelu HardSigmoid HardSwish LeakyRelu Mish "
        "PRelu QLinearLeakyRelu QLinearSigmoid QuickGelu Relu Selu Sigmoid Softplus Softsign Swish Tanh "
        "ThresholdedRelu",
        "add": "Add QLinearAdd Sum",
        "softmax": "Hardmax LogSoftmax QLinearSoftmax Softmax",
        "dropout": "BitmaskDropout Dropout",
        "recurrent": "GRU LSTM RNN",
        "attention": "Attention GroupQueryAttention MultiHeadAttention QAttention",
        "loss": "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
        "concatenate": "Concat",
        "embedding": "EmbedLayerNormalization",
        "rotary": "RotaryEmbedding",
        "branch": "If",
    }.items()
    for name in names.split()
}
_PRODUCTS = {
    "DynamicQuantizeMatMul", "Einsum", "FusedGemm", "FusedMatMul", "Gemm", "MatMul", "MatMulBnb4", "MatMulInteger",
    "MatMulIntegerToFloat", "MatMulNBits", "QGemm", "QLinearMatMul",
}  # fmt: skip
_OF_MATRICES = {"FusedMatMul", "MatMul"}
_KEPT_OF_STATES = {
    "GRU": 7,
    "LSTM": 7,
    "RNN": 1,
}  # numbers of four bytes beside each state, as PyTorch's own passes keep
_OVERWRITES = {"Clip", "LeakyRelu", "Relu"}  # as PyTorch does with inplace=True
_VIEWS = {"Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Unsqueeze"}
_POOLS = {"AveragePool", "LpPool", "MaxPool", "QLinearAveragePool"}


def _stem(wanted: str) -> str:
    """Return what a layer would be called, were it alone."""
    return shown(wanted, _MOST_NAME) or "layer"


def _kind_of(node: OnnxNode, scope: Scope, output_shape: tuple[int, ...]) -> str:
    """Return the kind of a layer in the words of the zoo; the operator's own name in small letters where it has none.

    A product with weights is ``fully_connected`` where a sample is one row, else ``matmul``; a product of two
    activations is ``attention``, as in the zoo's transformers.
    """
    if node.op_type in _PRODUCTS:
        if not any(scope.is_fixed(name) for name in node.inputs[:4] if name):
            return "attention"
        return "fully_connected" if len(output_shape) == 1 else "matmul"
    if node.op_type.startswith("Gather") and node.inputs and scope.is_fixed(node.inputs[0]):
        return "embedding"
    indices = node.inputs[1] if node.op_type == "Gather" and len(node.inputs) > 1 else ""
    if indices and scope.is_fixed(indices) and scope.shape_of(indices) == ():
        return "slice"  # one part that is known beforehand is read where it lies; several are copied
    if kind := _KINDS.get(node.op_type):
        return kind
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node.op_type).lower()
    return re.sub(r"\W+", "_", words)[:40].strip("_") or "operator"


def _is_in_place(node: OnnxNode, scope: Scope) -> bool:
    """Whether an operator keeps nothing more for the backward pass: views, ReLU and sums that overwrite an input."""
    if node.op_type in _OVERWRITES or node.op_type in _VIEWS:
        return True
    if node.op_type not in ("Add", "Sum") or not node.outputs:
        return False
    output = scope.shape_of(node.outputs[0])
    moving = [name for name in node.inputs if name and not scope.is_fixed(name)]
    return output is not None and any(scope.shape_of(name) == output for name in moving)


def _window_of(view: View) -> Window | None:
    """Return the window of a convolution or a pool, where it is square; the padding is the leading one."""
    node = view.node
    is_convolution = _KINDS.get(node.op_type) == "convolution" and node.op_type != "ConvTranspose"
    if not is_convolution and node.op_type not in _POOLS:
        return None
    try:
        kernels = node.integers("kernel_shape") or view.input(3 if node.op_type == "QLinearConv" else 1)[2:]
        sizes, results = view.input()[2:], view.output()[2:]
    except UnknownShapeError:
        return None
    strides = node.integers("strides") or (1,) * len(kernels)
    dilations = node.integers("dilations") or (1,) * len(kernels)
    if not len(kernels) == len(strides) == len(dilations) == len(sizes) == len(results) == 2:
        return None
    spans = [(kernel - 1) * dilation + 1 for kernel, dilation in zip(kernels, dilations, strict=True)]
    pads = node.integers("pads")[:2] or (0, 0)
    if (mode := node.text("auto_pad", "NOTSET")) in ("SAME_UPPER", "SAME_LOWER"):
        rows = zip(sizes, results, strides, spans, strict=True)
        total = [max(0, (result - 1) * stride + span - size) for size, result, stride, span in rows]
        pads = tuple(one // 2 if mode == "SAME_UPPER" else one - one // 2 for one in total)
    if len({*spans}) > 1 or len({*strides}) > 1 or len({*pads}) > 1 or min(*spans, *strides) < 1 or min(pads) < 0:
        return None
    return Window(kernel=spans[0], stride=strides[0], padding=pads[0])


# -- parameters ------------------------------------------------------------------------------------------------------

_Roles = Mapping[int, str]  # of inputs, by position
_SHORT = {"FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0", "FLOAT4E2M1"}
_QUANTIZED = {"INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4", "INT2", "UINT2", "INT32"} | _SHORT
_WEIGHT_BIAS: _Roles = {1: "weight", 2: "bias"}
_ROLES: Mapping[str, _Roles] = {
    name: roles
    for names, roles in (
        ("Conv ConvInteger ConvTranspose FusedConv FusedGemm QAttention", _WEIGHT_BIAS),
        ("GroupNormalization InstanceNormalization LayerNormalization GroupNorm", {1: "scale", 2: "shift"}),
        ("RMSNormalization SimplifiedLayerNormalization", {1: "scale"}),
        ("BatchNormalization", {1: "scale", 2: "shift", 3: "moving", 4: "moving"}),
        ("SkipGroupNorm", {1: "scale", 2: "shift"}),
        ("SkipLayerNormalization", {2: "scale", 3: "shift", 4: "bias"}),
        ("SkipSimplifiedLayerNormalization", {2: "scale", 3: "bias"}),
        ("GRU LSTM RNN", {1: "weight", 2: "weight", 3: "bias", 7: "weight"}),  # 7: peepholes
        ("Gather GatherElements GatherND", {0: "weight"}),
        ("EmbedLayerNormalization", {2: "weight", 3: "weight", 4: "weight", 5: "scale", 6: "shift"}),
        ("BiasAdd BiasDropout BiasGelu BiasSplitGelu FastGelu", {1: "bias"}),
        ("FusedMatMul MatMul MatMulInteger", {0: "weight", 1: "weight"}),
        ("MatMulBnb4 PRelu", {1: "weight"}),
        ("MatMulNBits", {1: "weight", 5: "bias"}),
        ("MatMulIntegerToFloat", {1: "weight", 6: "bias"}),
        ("DynamicQuantizeMatMul", {1: "weight", 4: "bias"}),
        ("QLinearMatMul", {0: "weight", 3: "weight"}),
        ("QLinearConv", {3: "weight", 8: "bias"}),
        ("QGemm", {3: "weight", 6: "bias"}),
        ("Gemm", {0: "weight", 1: "weight", 2: "bias"}),
        ("DeformConv", {1: "weight", 3: "bias"}),
        ("Attention", {0: "weight", 1: "weight", 2: "weight"}),
        ("MultiHeadAttention", {0: "weight", 1: "weight", 2: "weight", 3: "bias"}),
        ("Where", {1: "weight", 2: "weight"}),
    )
    for name in names.split()
}
# All inputs in one role. Numbers that a graph holds as constants of nodes are taken as fixed here, see _Parameters.
_ALL = {
    **dict.fromkeys(("Add", "Sub", "Sum"), "bias"),
    **dict.fromkeys(("Div", "Mul"), "scale"),
    **dict.fromkeys(("Concat", "Einsum"), "weight"),
}
_BY_ELEMENT = {"Add", "Concat", "Div", "Mul", "Sub", "Sum", "Where"}
_INTEGER_WEIGHTS = {
    "ConvInteger", "DynamicQuantizeMatMul", "MatMulBnb4", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits",
    "QAttention", "QGemm", "QLinearConv", "QLinearMatMul",
}  # fmt: skip


@dataclass
class _Parameters:
    """Counts the parameters of one graph; every stored tensor belongs to the first operator that uses it."""

    # whether the graph stores broken numbers outside of nodes. Then those that a node holds, and that are added or
    # multiplied element by element, are factors and masks, not parameters
    has_initializers: bool
    # stored tensors that are embeddings. Other names of them are the same tensor: the matrix of the logits is tied to
    # it. Of all other tensors every name is one of its own, see :meth:`warnings`
    tables: frozenset[str] = frozenset()
    owner: dict[str, str] = field(default_factory=dict)
    shared: dict[str, list[str]] = field(default_factory=dict)
    dtypes: Counter[str] = field(default_factory=Counter)
    copies: Counter[bool] = field(default_factory=Counter)
    num_quantized: int = 0
    num_constants: int = 0

    def of(self, node: OnnxNode, layer: str, scope: Scope) -> tuple[Tensor, ...]:
        """Return the tensors of an operator; of an unknown one all broken numbers that it is given are weights."""
        roles = _WEIGHT_BIAS if node.op_type == "Attention" and node.domain else _ROLES.get(node.op_type, {})
        every = "" if node.op_type == "Attention" and node.domain else _ALL.get(node.op_type, "")
        if not is_counted(node):
            every = "weight"
        found: list[Tensor] = []
        for position, name in enumerate(node.inputs):
            role = every or roles.get(position)
            if role is None or not name or not scope.is_fixed(name):
                continue
            for root in scope.roots_of(name):
                if self._is_parameter(node, root) and self._is_first(root, layer):
                    elements = self._num_elements(node, root)
                    found.append(Tensor(name=shown(root.tensor.name, 200), num_elements=elements, role=role))
        return tuple(found)

    def _is_parameter(self, node: OnnxNode, root: Root) -> bool:
        """Whether a stored tensor is trained, as far as the graph tells."""
        tensor = root.tensor
        if not tensor.dims or not tensor.num_elements:
            return False
        if tensor.dtype not in FLOATS:
            return (root.is_quantized or node.op_type in _INTEGER_WEIGHTS) and tensor.dtype in _QUANTIZED
        is_factor = node.op_type in _BY_ELEMENT and not root.is_initializer
        if is_factor and (self.has_initializers or tensor.num_elements == 1):
            self.num_constants += tensor.num_elements > 1
            return False
        return True

    def _is_first(self, root: Root, layer: str) -> bool:
        """Whether no other operator counts the tensor; remember who shares it."""
        name = root.origin if root.origin in self.tables else root.tensor.name
        if name not in self.owner and root.copy_of and name != root.origin:
            self.copies[len(root.tensor.dims) > 1] += 1
        if name in self.owner:
            if self.owner[name] != layer:
                self.shared.setdefault(name, [self.owner[name]]).append(layer)
            return False
        self.owner[name] = layer
        return True

    def _num_elements(self, node: OnnxNode, root: Root) -> int:
        """Return the numbers of a tensor, of packed ones by the operator's sizes."""
        if root.tensor.dtype in FLOATS:
            self.dtypes[root.tensor.dtype] += root.tensor.num_elements
            return root.tensor.num_elements
        self.num_quantized += 1
        if node.op_type in ("MatMulNBits", "MatMulBnb4"):
            return max(0, node.integer("K")) * max(0, node.integer("N"))
        return root.tensor.num_elements

    def notes(self, unused: Iterable[str]) -> list[str]:
        """Return what to tell about parameters."""
        notes = []
        for name, layers in self.shared.items():
            users = first_names(dict.fromkeys(layers))
            notes.append(f"{shown(name)} is shared by {users}; it is counted once.")
        if self.num_quantized:
            what = "weights are stored as quantised numbers, as for inference"
            notes.append(f"{self.num_quantized} {what}; they count as parameters that are trained.")
        if self.num_constants:
            what = "constants inside of operators are added or multiplied in"
            notes.append(f"{self.num_constants} {what}; they are not counted as parameters.")
        if listed := [shown(name) for name in unused]:
            notes.append(f"No operator reads the stored tensors {first_names(listed)}; they are not counted.")
        if few := self.copies[False]:
            notes.append(f"{few} biases or scales are stored once under several names; each name is counted.")
        return notes[:20]

    def warnings(self) -> list[str]:
        """Return what makes the numbers of parameters doubtful.

        PyTorch's exporter by tracing stores tensors once that are equal at the time, such as the layers of a fresh
        ``nn.TransformerEncoder``, and gives them their own names by ``Identity``. So it does with what is truly shared.
        """
        if not (many := self.copies[True]):
            return []
        what = "matrices are" if many > 1 else "matrix is"
        return [
            f"{many} {what} stored once with another of equal numbers, under a name of its own, and counted as trained "
            f"apart. Where they are shared on purpose, subtract them."
        ]
