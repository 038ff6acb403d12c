"""Operators of one pass, gathered into what becomes layers, and which of them reads what.

A module of torch without modules within is one layer, and so is a fused attention. Every other operator is a layer of
its own, except that simple ones of one input melt into their only reader where nothing of them is kept for the backward
pass. What merely shows the same numbers (a view) is no layer. What depends on no sample (tables of positions, masks,
weights that are combined first) is none either: its parameters go to the layer that reads it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from planner.importers.torch_module.record import Call, Operation, Output, Recording

__all__ = ["Gathered", "Group", "gather"]

Key = tuple[str, int]


@dataclass(slots=True)
class Group:
    """Operators that become a layer.

    Attributes
    ----------
    inputs
        Groups that it reads.
    parameters
        Names of the parameters and buffers that it is the first to read.
    created
        Storages that it allocates.
    flop, twice_flop
        At the example's batch, and at twice that batch.
    order
        Position of its first operator.
    """

    key: Key
    call: Call
    order: int
    names: list[str] = field(default_factory=list)
    inputs: dict[Key, None] = field(default_factory=dict)
    parameters: dict[str, None] = field(default_factory=dict)
    created: dict[int, None] = field(default_factory=dict)
    written: dict[int, None] = field(default_factory=dict)
    flop: int = 0
    twice_flop: int = 0

    @property
    def is_module(self) -> bool:
        """Whether it is a whole module."""
        return self.key[0] == "call"


@dataclass(slots=True)
class Gathered:
    """All groups in order, where the numbers of each storage come from, and the shapes of storages at both batches."""

    groups: dict[Key, Group] = field(default_factory=dict)
    sources: dict[int, tuple[Key, ...]] = field(default_factory=dict)
    origins: dict[int, tuple[str, ...]] = field(default_factory=dict)
    shapes: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    made_in: dict[int, int] = field(default_factory=dict)
    read_by: dict[int, dict[Key, None]] = field(default_factory=dict)
    checkpointed: set[int] = field(default_factory=set)
    constant_flop: int = 0


def gather(one: Recording, two: Recording, trained: set[str]) -> Gathered:
    """Return the groups of a pass; ``two`` is the same pass at twice the batch, or itself where there is none.

    ``trained`` names the parameters that have gradients.
    """
    found = Gathered()
    names = {storage: name for name, storage in reversed(one.held.items())}  # the first name of tied ones
    found.origins = {storage: (name,) for storage, name in names.items()}
    for position, storage in enumerate(one.given.values()):
        found.sources[storage] = (("input", position),)
    products = _products(one.operations)
    integers = set(one.given.values()) - one.floating_inputs
    for index, (operation, twice) in enumerate(zip(one.operations, two.operations, strict=True)):
        _add(found, index, operation, twice, _key(operation, index, products), trained, integers)
    _checkpointed_inputs(found, one)
    _melt(found, one)
    return found


def _products(operations: Sequence[Operation]) -> dict[int, int]:
    """Return how many operators with products each call has of its own."""
    found: dict[int, int] = {}
    for operation in operations:
        found[operation.call.index] = found.get(operation.call.index, 0) + bool(operation.flop)
    return found


def _key(operation: Operation, index: int, products: dict[int, int]) -> Key:
    """Return the group of an operator."""
    call = operation.call
    if operation.scope is not None:
        return ("scope", operation.scope)
    if call.is_leaf:
        is_known = type(call.module).__module__.startswith("torch.nn.")
        if is_known or (call.name and products[call.index] <= 1):
            return ("call", call.index)
    return ("operation", index)


def _add(
    found: Gathered,
    index: int,
    operation: Operation,
    twice: Operation,
    key: Key,
    trained: set[str],
    integers: set[int],
) -> None:
    """Add one operator to its group, or pass on what it reads."""
    old = set(operation.inputs)
    for out, larger in zip(operation.outputs, twice.outputs, strict=True):
        _shape(found, out, larger, operation.call.index, is_new=out.storage not in old)
    read = () if _is_fresh(operation) else operation.inputs
    sources = dict.fromkeys(source for storage in read for source in found.sources.get(storage, ()))
    origins = dict.fromkeys(name for storage in read for name in found.origins.get(storage, ()))
    is_view = all(out.storage in old for out in operation.outputs) and not operation.is_writing
    if is_view or not operation.outputs:
        return
    is_simple = not operation.flop and not twice.flop
    is_constant = not any(source[0] != "input" for source in sources) and (
        (not sources and operation.flop == twice.flop and (key[0] != "call" or not origins.keys() & trained))
        or (bool(sources) and is_simple and not origins and sources.keys() <= _int_sources(found, integers))
    )
    if is_constant or (is_simple and not any(out.is_floating for out in operation.outputs)):
        found.constant_flop += operation.flop
        for out in operation.outputs:
            found.sources[out.storage] = tuple(sources)
            found.origins[out.storage] = tuple(origins)
        return
    _join(found, index, operation, twice, key, sources, origins)


def _int_sources(found: Gathered, integers: set[int]) -> set[Key]:
    """Return the inputs of the network that are integers: what is made of them alone is a mask or a position."""
    return {source for storage in integers for source in found.sources.get(storage, ()) if source[0] == "input"}


def _is_fresh(operation: Operation) -> bool:
    """Whether an operator takes only the shape of what it reads."""
    name = operation.name
    return name.endswith("_like") or name.startswith("new_") or name in ("bernoulli", "zero", "fill") or not name


def _join(
    found: Gathered,
    index: int,
    operation: Operation,
    twice: Operation,
    key: Key,
    sources: dict[Key, None],
    origins: dict[str, None],
) -> None:
    """Add an operator to its group, which is made where it is missing."""
    group = found.groups.setdefault(key, Group(key=key, call=operation.call, order=index))
    group.names.append(operation.name if key[0] != "scope" else "scaled_dot_product_attention")
    group.flop += operation.flop
    group.twice_flop += twice.flop
    group.inputs.update({source: None for source in sources if source != key})
    group.parameters.update(origins)
    for storage in operation.inputs:
        if storage in found.sources:
            found.read_by.setdefault(storage, {})[key] = None
    for out in operation.outputs:
        if out.storage not in operation.inputs and out.storage not in found.sources:
            group.created[out.storage] = None
        group.written[out.storage] = None
        found.sources[out.storage] = (key,)
        found.origins.pop(out.storage, None)
        if operation.is_checkpointed:
            found.checkpointed.add(out.storage)


def _shape(found: Gathered, out: Output, larger: Output, call: int, *, is_new: bool) -> None:
    """Note the shape of a storage: of the last view of all of it in the call that made it."""
    if is_new and out.storage not in found.shapes:
        found.shapes[out.storage] = (out.shape, larger.shape)
        found.made_in[out.storage] = call
    elif found.made_in.get(out.storage) == call and prod(found.shapes[out.storage][0]) == prod(out.shape):
        found.shapes[out.storage] = (out.shape, larger.shape)


def _checkpointed_inputs(found: Gathered, one: Recording) -> None:
    """Keep what a checkpoint reads from outside: it needs that to run again."""
    for operation in one.operations:
        if operation.is_checkpointed:
            for storage in operation.inputs:
                is_outside = storage in found.sources and storage not in found.checkpointed
                if is_outside and storage not in one.held.values():
                    one.saved.setdefault(storage, one.sizes_bytes.get(storage, 0))


def _melt(found: Gathered, one: Recording) -> None:
    """Melt simple operators of one input into their only reader, where nothing of them is kept.

    What joins branches stays, whoever reads it.
    """
    kept = set(one.saved) | set(one.results)
    readers: dict[Key, dict[Key, None]] = {}
    for group in found.groups.values():
        for source in group.inputs:
            readers.setdefault(source, {})[group.key] = None
    for group in list(found.groups.values()):
        reading = readers.get(group.key, {})
        if group.key[0] != "operation" or group.flop or group.twice_flop or len(reading) != 1 or len(group.inputs) > 1:
            continue
        reader = found.groups[next(iter(reading))]
        is_alike = reader.key[0] == "operation" and reader.call.index == group.call.index and not reader.flop
        if not is_alike or group.written.keys() & kept:
            continue
        merged: dict[Key, None] = {}
        for source in reader.inputs:  # keep the order of what is read
            merged.update(group.inputs if source == group.key else {source: None})
        reader.inputs = {source: None for source in merged if source != reader.key}
        reader.parameters = {**group.parameters, **reader.parameters}
        reader.names = [*group.names, *reader.names]
        for source in group.inputs:
            readers[source].pop(group.key, None)
            readers[source][reader.key] = None
        del found.groups[group.key]
