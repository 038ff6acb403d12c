"""Parameters of ONNX operators: which of their inputs are trained, in which role, each stored tensor counted once."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from planner.dnn import Tensor
from planner.importers.onnx_model.plain import FLOATS, QUANTIZED, OnnxNode, shown
from planner.importers.onnx_model.scope import Root, Scope
from planner.importers.onnx_model.view import View

__all__ = ["Parameters"]

Roles = Mapping[int, str]
_WEIGHT_BIAS: Roles = {1: "weight", 2: "bias"}
_SCALE_SHIFT: Roles = {1: "scale", 2: "shift"}
_RECURRENT: Roles = {1: "weight", 2: "weight", 3: "bias", 7: "weight"}  # 7: peepholes
_STATES: Roles = {0: "weight", 1: "weight", 2: "weight"}
_TABLE: Roles = {0: "weight"}
_SCALE: Roles = {1: "scale"}
_BIAS: Roles = {1: "bias"}
_EITHER: Roles = {0: "weight", 1: "weight"}
_ROLES: Mapping[str, Roles] = {
    **dict.fromkeys(("Conv", "ConvInteger", "ConvTranspose", "FusedConv", "FusedGemm", "QAttention"), _WEIGHT_BIAS),
    **dict.fromkeys(("GroupNormalization", "InstanceNormalization", "LayerNormalization", "GroupNorm"), _SCALE_SHIFT),
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), _SCALE),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _RECURRENT),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), _TABLE),
    **dict.fromkeys(("BiasAdd", "BiasDropout", "BiasGelu", "BiasSplitGelu", "FastGelu"), _BIAS),
    **dict.fromkeys(("FusedMatMul", "MatMul", "MatMulInteger"), _EITHER),
    "Attention": _STATES,
    "BatchNormalization": {**_SCALE_SHIFT, 3: "moving", 4: "moving"},
    "DeformConv": {1: "weight", 3: "bias"},
    "DynamicQuantizeMatMul": {1: "weight", 4: "bias"},
    "EmbedLayerNormalization": {2: "weight", 3: "weight", 4: "weight", 5: "scale", 6: "shift"},
    "Gemm": {0: "weight", 1: "weight", 2: "bias"},
    "GroupQueryAttention": {},
    "MatMulBnb4": {1: "weight"},
    "MatMulIntegerToFloat": {1: "weight", 6: "bias"},
    "MatMulNBits": {1: "weight", 5: "bias"},
    "MultiHeadAttention": {**_STATES, 3: "bias"},
    "PRelu": {1: "weight"},
    "QGemm": {3: "weight", 6: "bias"},
    "QLinearConv": {3: "weight", 8: "bias"},
    "QLinearMatMul": {0: "weight", 3: "weight"},
    "SkipGroupNorm": _SCALE_SHIFT,
    "SkipLayerNormalization": {2: "scale", 3: "shift", 4: "bias"},
    "SkipSimplifiedLayerNormalization": {2: "scale", 3: "bias"},
    "Where": {1: "weight", 2: "weight"},
}
# All inputs in one role. Numbers that a graph holds as constants of nodes are taken as fixed here, see Parameters.
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
class Parameters:
    """Counts the parameters of one graph; every stored tensor belongs to the first operator that uses it.

    Attributes
    ----------
    has_initializers
        Whether the graph stores broken numbers outside of nodes. Then those that a node holds, and that are added or
        multiplied element by element, are factors and masks, not parameters.
    tables
        Stored tensors that are embeddings. Other names of them are the same tensor: the matrix of the logits is tied to
        it. Of all other tensors every name is one of its own, see :meth:`warnings`.
    """

    has_initializers: bool
    tables: frozenset[str] = frozenset()
    owner: dict[str, str] = field(default_factory=dict)
    shared: dict[str, list[str]] = field(default_factory=dict)
    dtypes: Counter[str] = field(default_factory=Counter)
    copies: Counter[bool] = field(default_factory=Counter)
    num_quantized: int = 0
    num_constants: int = 0

    def of(self, node: OnnxNode, layer: str, scope: Scope, *, is_known: bool) -> tuple[Tensor, ...]:
        """Return the tensors of an operator; of an unknown one all broken numbers that it is given are weights."""
        found: list[Tensor] = []
        for position, name in enumerate(node.inputs):
            role = self._role(node, position, is_known=is_known)
            if role is None or not name or not scope.is_fixed(name):
                continue
            for root in scope.roots_of(name):
                if self._is_parameter(node, root) and self._is_first(root, layer):
                    elements = self._num_elements(node, root, scope)
                    found.append(Tensor(name=shown(root.tensor.name, 200), num_elements=elements, role=role))
        return tuple(found)

    @staticmethod
    def _role(node: OnnxNode, position: int, *, is_known: bool) -> str | None:
        """Return the role of an input, or None where it is no parameter."""
        if not is_known:
            return "weight"
        if node.op_type == "Attention" and node.domain:
            return _WEIGHT_BIAS.get(position)
        return _ALL.get(node.op_type) or _ROLES.get(node.op_type, {}).get(position)

    def _is_parameter(self, node: OnnxNode, root: Root) -> bool:
        """Whether a stored tensor is trained, as far as the graph tells."""
        tensor = root.tensor
        if not tensor.dims or not tensor.num_elements:
            return False
        if tensor.dtype not in FLOATS:
            is_quantized = root.is_quantized or node.op_type in _INTEGER_WEIGHTS
            return is_quantized and tensor.dtype in QUANTIZED
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

    def _num_elements(self, node: OnnxNode, root: Root, scope: Scope) -> int:
        """Return the numbers of a tensor, of packed ones by the operator's sizes."""
        if root.tensor.dtype not in FLOATS:
            self.num_quantized += 1
        else:
            self.dtypes[root.tensor.dtype] += root.tensor.num_elements
        if node.op_type in ("MatMulNBits", "MatMulBnb4") and root.tensor.dtype not in FLOATS:
            view = View(node, scope.shape_of, scope.values_of)
            return max(0, view.integer("K")) * max(0, view.integer("N"))
        return root.tensor.num_elements

    def notes(self, unused: Iterable[str]) -> list[str]:
        """Return what to tell about parameters."""
        notes = []
        for name, layers in self.shared.items():
            users = list(dict.fromkeys(layers))
            more = f" and {len(users) - 5} more" if users[5:] else ""
            notes.append(f"{shown(name)} is shared by {', '.join(users[:5])}{more}; it is counted once.")
        if self.num_quantized:
            what = "weights are stored as quantised numbers, as for inference"
            notes.append(f"{self.num_quantized} {what}; they count as parameters that are trained.")
        if self.num_constants:
            what = "constants inside of operators are added or multiplied in"
            notes.append(f"{self.num_constants} {what}; they are not counted as parameters.")
        if listed := [shown(name) for name in unused]:
            more = f" and {len(listed) - 5} more" if listed[5:] else ""
            notes.append(f"No operator reads the stored tensors {', '.join(listed[:5])}{more}; they are not counted.")
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
