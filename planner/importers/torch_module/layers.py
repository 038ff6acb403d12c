"""Layers and totals from one pass of a module, or from two: the second at twice the batch tells what grows with it.

A module of torch without modules within is one layer, and so is a fused attention. Every other operator is a layer of
its own, except that simple ones of one input melt into their only reader where nothing of them is kept for the backward
pass. What merely shows the same numbers (a view) is no layer. What depends on no sample (tables of positions, masks,
weights that are combined first) is none either: its parameters go to the layer that reads it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

from planner.dnn import Layer, Operator, Tensor, Window
from planner.frozen import frozen
from planner.importers.imported import UniqueNames
from planner.importers.torch_module.operators import (
    PRODUCTS,
    Share,
    Step,
    attention_of,
    is_cutting,
    is_recurrent,
    moved_elements,
    operators_of,
    recurrent_of,
)
from planner.importers.torch_module.recording import Call, Operation, Recording

_FLOP_PER_MULTIPLY_ADD = 2
_Key = tuple[str, int]


@frozen
class Passes:
    """A pass at the example's batch and one at twice that; the same one twice where the second could not be run.

    ``is_more``: the module fails with the example's batch, and ``batch`` is more than that.
    """

    one: Recording
    two: Recording
    batch: int
    is_more: bool = False

    @property
    def is_split(self) -> bool:
        """Whether there are two passes."""
        return self.one is not self.two


@frozen
class Figures:
    """The layers, each with those that it reads, and what is not in them."""

    layers: tuple[tuple[Layer, tuple[str, ...]], ...]
    fixed_multiply_adds: int  # what a pass does once, whatever its batch
    # saved_bytes, fixed_saved_bytes: of activations that autograd keeps: of each sample, and once
    saved_bytes: float
    fixed_saved_bytes: float
    grown: tuple[str, ...]  # layers whose work grows faster than the batch
    unread: tuple[str, ...]  # parameters that no layer reads
    unknown_share: float  # of all elements that operators read and write, those of operators without a formula


class Parameter(Protocol):
    """What is asked of a parameter."""

    requires_grad: bool


def layers_of(passes: Passes, parameters: Mapping[str, Parameter], buffers: Mapping[str, object]) -> Figures:
    """Return the layers of a module.

    Parameters
    ----------
    parameters, buffers
        By name, as :meth:`torch.nn.Module.named_parameters` gives them; buffers that are stored with the module alone.
    """
    trained = {name for name, tensor in parameters.items() if tensor.requires_grad}
    found = _Gathered(passes, trained)
    builder = _Builder(passes, found, {**parameters, **buffers}, trained)
    layers = [builder.input(position) for position in range(len(passes.one.given))]
    layers += [builder.layer(group) for group in sorted(found.groups.values(), key=lambda group: group.position)]
    one, two = sum(passes.one.saved.values()), sum(passes.two.saved.values())
    steps = [step.one for group in found.groups.values() for step in group.steps]
    unknown = sum(moved_elements(one) for one in steps if one.is_unknown)
    saved_bytes = two - one if passes.is_split and one <= two <= 2 * one else one
    return Figures(
        layers=tuple(layers),
        fixed_multiply_adds=builder.fixed + found.constant_flop // _FLOP_PER_MULTIPLY_ADD,
        saved_bytes=saved_bytes / passes.batch,
        fixed_saved_bytes=float(one - saved_bytes),
        grown=tuple(builder.grown),
        unread=tuple(name for name in parameters if name not in builder.owned),
        unknown_share=unknown / max(1, sum(map(moved_elements, steps))) if unknown else 0.0,
    )


# -- operators that become a layer -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Group:
    """Operators that become a layer."""

    key: _Key
    call: Call
    order: int  # position of its first operator
    names: list[str] = field(default_factory=list)
    # its operators, behind those that nobody else needed before and that depend on no sample
    steps: list[Step] = field(default_factory=list)
    inputs: dict[_Key, None] = field(default_factory=dict)  # groups that it reads
    # names of the parameters and buffers that it is the first to read
    parameters: dict[str, None] = field(default_factory=dict)
    created: dict[int, None] = field(default_factory=dict)  # storages that it allocates
    written: dict[int, None] = field(default_factory=dict)
    # flop, twice_flop: at the example's batch, and at twice that batch
    flop: int = 0
    twice_flop: int = 0

    @property
    def is_module(self) -> bool:
        """Whether it is a whole module."""
        return self.key[0] == "call"

    @property
    def position(self) -> int:
        """When it ran; its simple operators stand before its last one."""
        return self.key[1] if self.key[0] == "operation" else self.order


class _Gathered:
    """All groups in order, where the numbers of each storage come from, and the shapes of storages at both batches.

    ``trained`` names the parameters that have gradients.
    """

    def __init__(self, passes: Passes, trained: set[str]) -> None:
        one = passes.one
        self.groups: dict[_Key, _Group] = {}
        self.shapes: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.read_by: dict[int, dict[_Key, None]] = {}
        self.constant_flop = 0
        self._waiting: dict[int, list[Step]] = {}  # operators that depend on no sample, by what they write
        self._made_in: dict[int, int] = {}
        self._checkpointed: set[int] = set()
        self._trained = trained
        # The first name of tied ones.
        self._origins: dict[int, tuple[str, ...]] = {storage: (name,) for name, storage in reversed(one.held.items())}
        inputs: list[tuple[_Key, int]] = [(("input", at), storage) for at, storage in enumerate(one.given.values())]
        self._sources: dict[int, tuple[_Key, ...]] = {storage: (key,) for key, storage in inputs}
        # What is made of inputs that are integers alone is a mask or a position.
        self._integers = {key for key, storage in inputs if storage not in one.floating_inputs}
        products = Counter(operation.call.index for operation in one.operations if operation.flop)
        for index, (operation, twice) in enumerate(zip(one.operations, passes.two.operations, strict=True)):
            call, key = operation.call, ("operation", index)
            is_known = type(call.module).__module__.startswith("torch.nn.") or is_recurrent(call.module)
            if operation.scope is not None:
                key = ("scope", operation.scope)
            elif call.is_leaf and (is_known or (call.name and products[call.index] <= 1)):
                key = ("call", call.index)
            self._add(index, operation, twice, key)
        # A checkpoint needs what it reads from outside to run again.
        for operation in one.operations:
            for storage in operation.inputs if operation.is_checkpointed else ():
                is_outside = storage in self._sources and storage not in self._checkpointed
                if is_outside and storage not in one.held.values():
                    one.saved.setdefault(storage, one.sizes_bytes.get(storage, 0))
        self._melt({*one.saved, *one.results})

    def _add(self, index: int, operation: Operation, twice: Operation, key: _Key) -> None:
        """Add one operator to its group, or pass on what it reads."""
        old = set(operation.inputs)
        for out, larger in zip(operation.outputs, twice.outputs, strict=True):
            # The shape of a storage is that of the last view of all of it in the call that made it.
            is_first = out.storage not in self.shapes and (operation.is_writing or out.storage not in old)
            if is_first:
                self._made_in[out.storage] = operation.call.index
            is_whole = is_first or prod(self.shapes.get(out.storage, ((), ()))[0]) == prod(out.shape)
            if is_whole and self._made_in.get(out.storage) == operation.call.index:
                self.shapes[out.storage] = (out.shape, larger.shape)
        if not operation.outputs or (not operation.is_writing and all(out.storage in old for out in operation.outputs)):
            self._note_cut(operation, twice)
            return  # nothing, or a view
        name = operation.name
        # These take only the shape of what they read.
        is_fresh = name.endswith("_like") or name.startswith("new_") or name in ("bernoulli", "zero", "fill", "")
        read = () if is_fresh else operation.inputs
        sources = dict.fromkeys(source for storage in read for source in self._sources.get(storage, ()))
        origins = dict.fromkeys(name for storage in read for name in self._origins.get(storage, ()))
        is_simple = not operation.flop and not twice.flop
        if sources:
            is_constant = is_simple and not origins and sources.keys() <= self._integers
        else:
            has_own_weights = key[0] == "call" and bool(origins.keys() & self._trained)
            is_constant = operation.flop == twice.flop and not has_own_weights
        samples = frozenset(storage for storage in read if self._sources.get(storage))
        step = Step(operation, twice, samples, is_constant)
        before = [earlier for storage in operation.inputs for earlier in self._waiting.pop(storage, ())]
        steps = [*dict.fromkeys(before), step]
        if is_constant or (is_simple and not any(out.is_floating for out in operation.outputs)):
            self.constant_flop += operation.flop
            self._waiting[operation.outputs[0].storage] = steps
            for out in operation.outputs:
                self._sources[out.storage] = tuple(sources)
                self._origins[out.storage] = tuple(origins)
            return
        group = self.groups.setdefault(key, _Group(key=key, call=operation.call, order=index))
        self._join(group, operation, sources)
        group.steps += steps
        group.twice_flop += twice.flop
        group.parameters.update(origins)

    def _note_cut(self, operation: Operation, twice: Operation) -> None:
        """Add a view of a part to the group that made the whole, for its gradient."""
        made_by = (
            self.groups.get(next(iter(self._sources.get(operation.inputs[0], ())), ("", 0)))
            if operation.inputs
            else None
        )
        if made_by is not None and is_cutting(operation):
            made_by.steps.append(Step(operation, twice, frozenset(operation.inputs), is_constant=False))

    def _join(self, group: _Group, operation: Operation, sources: Mapping[_Key, None]) -> None:
        """Add an operator to its group; ``sources``: the groups and inputs that it reads."""
        key, old = group.key, set(operation.inputs)
        group.names.append(operation.name if key[0] != "scope" else "scaled_dot_product_attention")
        group.flop += operation.flop
        group.inputs.update({source: None for source in sources if source != key})
        for storage in operation.inputs:
            if storage in self._sources:
                self.read_by.setdefault(storage, {})[key] = None
        for out in operation.outputs:
            if out.storage not in old and out.storage not in self._sources:
                group.created[out.storage] = None
            group.written[out.storage] = None
            self._sources[out.storage] = (key,)
            self._origins.pop(out.storage, None)
            if operation.is_checkpointed:
                self._checkpointed.add(out.storage)

    def _melt(self, kept: set[int]) -> None:
        """Melt simple operators of one input into their only reader, where nothing of them is kept.

        What joins branches stays, whoever reads it.
        """
        readers: dict[_Key, dict[_Key, None]] = {}
        for group in self.groups.values():
            for source in group.inputs:
                readers.setdefault(source, {})[group.key] = None
        for group in list(self.groups.values()):
            reading = readers.get(group.key, {})
            if (
                group.key[0] != "operation"
                or group.flop
                or group.twice_flop
                or len(reading) != 1
                or len(group.inputs) > 1
            ):
                continue
            reader = self.groups[next(iter(reading))]
            is_alike = reader.key[0] == "operation" and reader.call.index == group.call.index and not reader.flop
            if not is_alike or group.written.keys() & kept:
                continue
            merged: dict[_Key, None] = {}
            for source in reader.inputs:  # keep the order of what is read
                merged.update(group.inputs if source == group.key else {source: None})
            reader.inputs = {source: None for source in merged if source != reader.key}
            reader.parameters = {**group.parameters, **reader.parameters}
            reader.names = [*group.names, *reader.names]
            reader.steps = [*group.steps, *reader.steps]
            for source in group.inputs:
                readers[source].pop(group.key, None)
                readers[source][reader.key] = None
            del self.groups[group.key]


# -- layers ----------------------------------------------------------------------------------------------------------


class _Builder:
    """Builds layers one after the other; a parameter belongs to the first that reads it."""

    def __init__(self, passes: Passes, found: _Gathered, tensors: Mapping[str, Any], trained: set[str]) -> None:
        self.owned: set[str] = set()
        self.grown: list[str] = []
        self.fixed = 0
        self._passes, self._found, self._tensors, self._trained = passes, found, tensors, trained
        self._order = {name: position for position, name in enumerate(tensors)}
        self._names: dict[_Key, str] = {}
        self._used = UniqueNames()
        self._results = set(passes.one.results)
        self._share = Share(passes.batch, passes.is_split)
        self._alike: dict[Operator, Operator] = {}

    def input(self, position: int) -> tuple[Layer, tuple[str, ...]]:
        """Return a tensor of the sample as a layer."""
        name, storage = list(self._passes.one.given.items())[position]
        self._names["input", position] = self._used.take(name)
        shape = self._passes.one.given_shapes[storage]
        own = _sample_shape(shape[1:] if shape and shape[0] == self._passes.batch else shape)
        return Layer(name=self._names["input", position], kind="input", output_shape=own), ()

    def layer(self, group: _Group) -> tuple[Layer, tuple[str, ...]]:
        """Return a group as a layer, with the names of those it reads."""
        # What others read, or what leaves the network; the last one where nobody reads any.
        outputs = [storage for storage in group.written if self._is_read(storage, group)] or [*group.written][-1:]
        shapes = [self._found.shapes[storage] for storage in outputs]
        one, two = shapes[0] if len(shapes) == 1 else ((sum(map(prod, sizes)),) for sizes in zip(*shapes, strict=True))
        num_multiply_adds = self._multiply_adds(group)
        has_tokens = len(one) > 2 or (len(one) == 2 and one[0] != self._passes.batch)
        kind = _kind_of(group, num_multiply_adds, has_tokens=has_tokens)
        own = sorted(group.parameters.keys() - self.owned, key=lambda name: self._order.get(name, len(self._order)))
        tensors = tuple(self._tensor(name, kind) for name in own if name in self._tensors)
        self.owned.update(group.parameters)
        shape, is_fixed = self._per_sample(one, two, kind)
        path, module = group.call.name, group.call.module
        if group.is_module:
            name = self._used.take(path or type(module).__name__.lower())
        else:
            operator = _chief_of(group.names).strip("_")
            name = self._used.take(f"{path}.{operator}" if path else operator)
        self._names[group.key] = name
        # Whether an output stays until the backward pass, or leaves the network.
        kept = self._passes.one.saved.keys() | self._results
        is_stored = any(storage in kept and storage in group.created for storage in outputs)
        layer = Layer(
            name=name,
            kind=kind,
            output_shape=shape,
            num_multiply_adds=num_multiply_adds,
            tensors=tensors,
            is_in_place=is_fixed or not is_stored,
            kept_beside_bytes=self._kept_beside_bytes(group, outputs),
            window=_window_of(module, kind) if group.is_module else None,
            operators=self._operators(group, num_multiply_adds),
        )
        if group.twice_flop > 2 * group.flop:
            self.grown.append(name)
        return layer, tuple(self._names[source] for source in group.inputs)

    def _operators(self, group: _Group, num_multiply_adds: int) -> tuple[Operator, ...]:
        """Return what a group computes and moves for one sample; equal ones are one object."""
        if group.is_module and is_recurrent(group.call.module) and num_multiply_adds:
            path, held = group.call.name, self._passes.one.held
            repeated = held.get(f"{path}.weight_hh_l0" if path else "weight_hh_l0")
            num_steps = sum(bool(step.one.flop) and repeated in step.one.inputs for step in group.steps)
            found = [recurrent_of(group.call.module, num_steps, num_multiply_adds)]
        elif group.key[0] == "scope":
            one, two = (recorded.attentions[group.key[1]] for recorded in (self._passes.one, self._passes.two))
            before = [step for step in group.steps if step.one.scope is None]
            found = [*operators_of(before, self._share, 0), attention_of(one, two, self._share, num_multiply_adds)]
        else:
            found = operators_of(group.steps, self._share, num_multiply_adds)
        return tuple(self._alike.setdefault(operator, operator) for operator in found)

    def _kept_beside_bytes(self, group: _Group, outputs: Sequence[int]) -> int:
        """Return what a group keeps of one sample beside its outputs: what does not grow with the batch is left out."""
        kept, saved = 0, self._passes.one.saved
        for storage in group.created:
            if storage in saved and storage not in outputs:
                small, large = map(prod, self._found.shapes[storage])
                kept += saved[storage] * (large > small or not self._passes.is_split)
        return round(kept / self._passes.batch)

    def _is_read(self, storage: int, group: _Group) -> bool:
        """Whether another group reads a storage, or it leaves the network."""
        readers = self._found.read_by.get(storage, ())
        return storage in self._results or any(key != group.key for key in readers)

    def _tensor(self, name: str, kind: str) -> Tensor:
        """Return a tensor with its role, by its name, its shape and the kind of its layer."""
        held, is_bias = self._tensors[name], "bias" in name.rsplit(".", 1)[-1]
        if name not in self._trained:
            role = "moving"
        elif kind in ("batch_norm", "norm"):
            role = "shift" if is_bias else "scale"
        else:
            role = "bias" if is_bias and held.dim() <= 1 else "weight"
        return Tensor(name=name, num_elements=held.numel(), role=role)

    def _multiply_adds(self, group: _Group) -> int:
        """Return the multiply-adds of one sample; what does not grow with the batch is added to the fixed ones."""
        growth = group.twice_flop - group.flop
        if not self._passes.is_split or growth < 0 or growth > group.flop:
            growth = group.flop
        per_sample = growth // (_FLOP_PER_MULTIPLY_ADD * self._passes.batch)
        self.fixed += group.flop // _FLOP_PER_MULTIPLY_ADD - per_sample * self._passes.batch
        return per_sample

    def _per_sample(self, one: tuple[int, ...], two: tuple[int, ...], kind: str) -> tuple[tuple[int, ...], bool]:
        """Return the shape of one sample's output, and whether it is the same whatever the batch."""
        batch = self._passes.batch
        if self._passes.is_split and prod(two) == prod(one):
            return _sample_shape(one[1:] if one and one[0] == 1 else one, kind), True
        grown = [axis for axis, (small, large) in enumerate(zip(one, two, strict=True)) if large == 2 * small]
        axis = grown[0] if self._passes.is_split and len(grown) == 1 else 0
        if one and one[axis] == batch:
            return _sample_shape((*one[:axis], *one[axis + 1 :]), kind), False
        if len(one) >= 2 and one[axis] % batch == 0:  # the batch and its tokens, or heads, are one dimension
            return _sample_shape((*one[:axis], one[axis] // batch, *one[axis + 1 :]), kind), False
        return (max(1, -(-prod(one) // batch)),), False


def _sample_shape(shape: tuple[int, ...], kind: str = "") -> tuple[int, ...]:
    """Return a shape as :class:`planner.dnn.Layer` has it: a sequence is (features, tokens, 1)."""
    if not shape:
        return (1,)
    if len(shape) == 2:
        is_channel_first = kind in ("convolution", "batch_norm", "pooling")
        return (*shape, 1) if is_channel_first else (shape[1], shape[0], 1)
    return shape


# -- kinds, in the words of this project -------------------------------------------------------------------------------

# First match wins: part of a class's name in lower case. Source of the names: torch/nn/modules of torch 2.13.
_MODULES = {
    **dict.fromkeys(("convtranspose", "conv1d", "conv2d", "conv3d"), "convolution"),
    "batchnorm": "batch_norm",
    "norm": "norm",
    "pool": "pooling",
    "embedding": "embedding",
    **dict.fromkeys(("dropout", "droppath"), "dropout"),
    **dict.fromkeys(("lstm", "gru", "rnn"), "recurrent"),
    "flatten": "flatten",
    "softmax": "softmax",
    "loss": "loss",
    "rotary": "rotary",
}
_ACTIVATIONS = (
    *("relu", "gelu", "silu", "mish", "sigmoid", "tanh", "softplus", "softsign", "elu", "glu", "hardswish", "swish"),
    *("activation", "threshold"),
)
_OPERATORS = {
    "convolution": "convolution",
    **dict.fromkeys(("cat", "stack"), "concatenate"),
    **dict.fromkeys(("add", "sub"), "add"),
    **dict.fromkeys(("mul", "div"), "multiply"),
    **dict.fromkeys(("native_dropout", "bernoulli"), "dropout"),
    "embedding": "embedding",
    "native_batch_norm": "batch_norm",
    **dict.fromkeys(("native_layer_norm", "native_group_norm", "_fused_rms_norm"), "norm"),
    "topk": "router",
    "mean": "pooling",
    "pow": "activation",
    **dict.fromkeys(("clone", "_to_copy", "copy"), "copy"),
    "nll_loss_forward": "loss",
}


def _kind_of(group: _Group, num_multiply_adds: int, *, has_tokens: bool) -> str:
    """Return the kind of a layer: of a whole module, or of some operators of a module's own; the last one names it.

    A linear layer is fully connected where it reads one row of a sample, and a matmul where it reads many (tokens), as
    in the zoo; a product without parameters is attention.
    """
    product = ("matmul" if has_tokens else "fully_connected") if group.parameters else "attention"
    if group.is_module:
        module = group.call.module
        name = type(module).__name__.lower()
        for part, kind in _MODULES.items():
            if part in name and (kind != "convolution" or hasattr(module, "kernel_size")):
                return kind
        if num_multiply_adds:
            return product
        return "activation" if any(part in name for part in _ACTIVATIONS) else "operator"
    if "scaled_dot_product_attention" in group.names:
        return "attention"
    if not PRODUCTS.isdisjoint(group.names):
        return product
    if num_multiply_adds:
        return next((_OPERATORS[name] for name in group.names if name in _OPERATORS), "operator")
    last = _chief_of(group.names)
    if {"neg", "cat", "mul", "add"} <= set(group.names):  # halves of a vector, turned
        return "rotary"
    for part, kind in {"softmax": "softmax", "pool": "pooling", "loss": "loss"}.items():
        if part in last:
            return kind
    return "activation" if any(part in last for part in _ACTIVATIONS) else _OPERATORS.get(last, "operator")


def _chief_of(names: list[str]) -> str:
    """Return the operator that some operators are called after: the last one that does not merely copy.

    >>> _chief_of(["mul", "add", "clone"])
    'add'
    """
    return next((name for name in reversed(names) if _OPERATORS.get(name) != "copy"), names[-1])


def _window_of(module: Any, kind: str) -> Window | None:
    """Return the square window of a convolution or a pool; None where there is none or it is not square."""
    if kind not in ("convolution", "pooling"):
        return None
    found = []
    for name in ("kernel_size", "stride", "padding", "dilation"):
        size = getattr(module, name, 1 if name == "dilation" else None)
        if isinstance(size, tuple) and len(size) == 2 and size[0] == size[1]:
            size = size[0]
        if not isinstance(size, int):
            return None
        found.append(size)
    kernel, stride, padding, dilation = found
    return Window(kernel=kernel, stride=stride, padding=padding) if dilation == 1 else None
