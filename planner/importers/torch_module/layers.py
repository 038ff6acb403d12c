"""Layers and totals from one pass of a module, or from two: the second at twice the batch tells what grows with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from planner.dnn import Layer, Tensor
from planner.importers.torch_module.groups import Gathered, Group, Key, gather
from planner.importers.torch_module.kinds import Work, chief_of, kind_of_module, kind_of_operators, role_of, window_of
from planner.importers.torch_module.record import Recording

__all__ = ["Figures", "Passes", "layers_of"]

_FLOP_PER_MULTIPLY_ADD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """A pass at the example's batch and one at twice that; the same one twice where the second could not be run."""

    one: Recording
    two: Recording
    batch: int

    @property
    def is_split(self) -> bool:
        """Whether there are two passes."""
        return self.one is not self.two


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The layers, each with those that it reads, and what is not in them.

    Attributes
    ----------
    fixed_multiply_adds
        What a pass does once, whatever its batch.
    saved_bytes, fixed_saved_bytes
        Of activations that autograd keeps: of each sample, and once.
    grown
        Layers whose work grows faster than the batch.
    unread
        Parameters that no layer reads.
    """

    layers: tuple[tuple[Layer, tuple[str, ...]], ...]
    fixed_multiply_adds: int
    saved_bytes: float
    fixed_saved_bytes: float
    grown: tuple[str, ...]
    unread: tuple[str, ...]


def layers_of(passes: Passes, parameters: Mapping[str, Any], buffers: Mapping[str, Any]) -> Figures:
    """Return the layers of a module.

    Parameters
    ----------
    parameters, buffers
        By name, as :meth:`torch.nn.Module.named_parameters` gives them; buffers that are stored with the module alone.
    """
    trained = {name for name, tensor in parameters.items() if tensor.requires_grad}
    found = gather(passes.one, passes.two, trained)
    builder = _Builder(passes, found, {**parameters, **buffers}, trained)
    layers = [builder.input(position) for position in range(len(passes.one.given))]
    layers += [builder.layer(group) for group in sorted(found.groups.values(), key=_position)]
    saved, fixed_saved = _split_bytes(passes)
    return Figures(
        layers=tuple(layers),
        fixed_multiply_adds=builder.fixed + found.constant_flop // _FLOP_PER_MULTIPLY_ADD,
        saved_bytes=saved,
        fixed_saved_bytes=fixed_saved,
        grown=tuple(builder.grown),
        unread=tuple(name for name in parameters if name not in builder.owned),
    )


def _position(group: Group) -> int:
    """Return when a group ran; its simple operators stand before its last one."""
    return group.key[1] if group.key[0] == "operation" else group.order


class _Builder:
    """Builds layers one after the other; a parameter belongs to the first that reads it."""

    def __init__(self, passes: Passes, found: Gathered, tensors: Mapping[str, Any], trained: set[str]) -> None:
        self.passes, self.found, self.tensors, self.trained = passes, found, tensors, trained
        self.order = {name: position for position, name in enumerate(tensors)}
        self.names: dict[Key, str] = {}
        self.used: set[str] = set()
        self.owned: set[str] = set()
        self.grown: list[str] = []
        self.fixed = 0

    def input(self, position: int) -> tuple[Layer, tuple[str, ...]]:
        """Return a tensor of the sample as a layer."""
        name, storage = list(self.passes.one.given.items())[position]
        self.names["input", position] = self._unique(name)
        shape = self.passes.one.given_shapes[storage]
        own = _sample_shape(shape[1:] if shape and shape[0] == self.passes.batch else shape)
        return Layer(name=self.names["input", position], kind="input", output_shape=own), ()

    def layer(self, group: Group) -> tuple[Layer, tuple[str, ...]]:
        """Return a group as a layer, with the names of those it reads."""
        one, two = self._output_shapes(group)
        per_sample = self._multiply_adds(group)
        names = sorted((name for name in group.parameters if name not in self.owned), key=self._order_of)
        kind = self._kind(group, one, per_sample)
        tensors = tuple(self._tensor(name, kind) for name in names if name in self.tensors)
        self.owned.update(group.parameters)
        shape, is_fixed = self._per_sample(one, two, kind)
        name = self._unique(self._name(group))
        self.names[group.key] = name
        layer = Layer(
            name=name,
            kind=kind,
            output_shape=shape,
            num_multiply_adds=per_sample,
            tensors=tensors,
            is_in_place=is_fixed or not self._is_stored(group),
            window=window_of(group.call.module, kind) if group.is_module else None,
        )
        if group.twice_flop > 2 * group.flop:
            self.grown.append(name)
        return layer, tuple(self.names[source] for source in group.inputs)

    # -- parts of a layer --------------------------------------------------------------------------------------------

    def _order_of(self, name: str) -> int:
        return self.order.get(name, len(self.order))

    def _unique(self, name: str) -> str:
        number, found = 1, name
        while found in self.used:
            number += 1
            found = f"{name}_{number}"
        self.used.add(found)
        return found

    def _name(self, group: Group) -> str:
        path = group.call.name
        if group.is_module:
            return path or type(group.call.module).__name__.lower()
        own = chief_of(group.names).strip("_")
        return f"{path}.{own}" if path else own

    def _kind(self, group: Group, shape: tuple[int, ...], num_multiply_adds: int) -> str:
        work = Work(
            num_multiply_adds=num_multiply_adds,
            has_weights=bool(group.parameters),
            has_tokens=len(shape) > 2 or (len(shape) == 2 and shape[0] != self.passes.batch),
        )
        return kind_of_module(group.call.module, work) if group.is_module else kind_of_operators(group.names, work)

    def _tensor(self, name: str, kind: str) -> Tensor:
        held = self.tensors[name]
        role = role_of(name, held.dim(), kind) if name in self.trained else "moving"
        return Tensor(name=name, num_elements=held.numel(), role=role)

    def _multiply_adds(self, group: Group) -> int:
        """Return the multiply-adds of one sample; what does not grow with the batch is added to the fixed ones."""
        growth = group.twice_flop - group.flop
        if not self.passes.is_split or growth < 0 or growth > group.flop:
            growth = group.flop
        per_sample = growth // (_FLOP_PER_MULTIPLY_ADD * self.passes.batch)
        self.fixed += group.flop // _FLOP_PER_MULTIPLY_ADD - per_sample * self.passes.batch
        return per_sample

    def _outputs(self, group: Group) -> list[int]:
        """Return the storages that others read, or that leave the network; the last one where nobody reads any."""
        results = set(self.passes.one.results)
        read = [
            storage
            for storage in group.written
            if storage in results or any(key != group.key for key in self.found.read_by.get(storage, ()))
        ]
        return read or [*group.written][-1:]

    def _output_shapes(self, group: Group) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shape of the output at both batches; of several outputs, the sum of their sizes."""
        shapes = [self.found.shapes[storage] for storage in self._outputs(group)]
        if len(shapes) == 1:
            return shapes[0]
        return (sum(prod(one) for one, _ in shapes),), (sum(prod(two) for _, two in shapes),)

    def _per_sample(self, one: tuple[int, ...], two: tuple[int, ...], kind: str) -> tuple[tuple[int, ...], bool]:
        """Return the shape of one sample's output, and whether it is the same whatever the batch."""
        batch = self.passes.batch
        size, twice = prod(one), prod(two)
        if self.passes.is_split and twice == size:
            return _sample_shape(one[1:] if one and one[0] == 1 else one, kind), True
        grown = [axis for axis, (small, large) in enumerate(zip(one, two, strict=True)) if large == 2 * small]
        axis = grown[0] if self.passes.is_split and len(grown) == 1 else 0
        if one and one[axis] == batch:
            return _sample_shape((*one[:axis], *one[axis + 1 :]), kind), False
        if len(one) >= 2 and one[axis] % batch == 0:  # the batch and its tokens, or heads, are one dimension
            return _sample_shape((*one[:axis], one[axis] // batch, *one[axis + 1 :]), kind), False
        return (max(1, -(-size // batch)),), False

    def _is_stored(self, group: Group) -> bool:
        """Whether an output that the group allocates stays until the backward pass, or leaves the network.

        What it keeps beside its outputs (statistics of a norm, masks, indices) is in the saved bytes alone.
        """
        kept = self.passes.one.saved.keys() | set(self.passes.one.results)
        return any(storage in kept and storage in group.created for storage in self._outputs(group))


def _sample_shape(shape: tuple[int, ...], kind: str = "") -> tuple[int, ...]:
    """Return a shape as :class:`planner.dnn.Layer` has it: a sequence is (features, tokens, 1)."""
    if not shape:
        return (1,)
    if len(shape) == 2:
        is_channel_first = kind in ("convolution", "batch_norm", "pooling")
        return (*shape, 1) if is_channel_first else (shape[1], shape[0], 1)
    return shape


def _split_bytes(passes: Passes) -> tuple[float, float]:
    """Return the bytes that are kept of each sample, and once."""
    one, two = sum(passes.one.saved.values()), sum(passes.two.saved.values())
    growth = two - one if passes.is_split and one <= two <= 2 * one else one
    return growth / passes.batch, float(one - growth)
