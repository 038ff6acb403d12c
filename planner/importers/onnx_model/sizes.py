"""Sizes of an ONNX graph's symbolic dimensions: the batch becomes 1, every other one is given by name.

Which dimension is the batch: one called ``batch``, ``batch_size``, ``N`` or the like, wherever it stands; else the
leading dimension of the first input. Where it is a fixed number, all figures are divided by that.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError
from planner.importers.onnx_model.file import refuse

__all__ = ["Batch", "data_inputs", "set_sizes"]

_BATCH_WORDS = {"b", "batch", "batch_size", "batchsize", "bs", "n", "batch_dim", "num_samples"}
_MOST_SIZE = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples that one pass through the graph computes, and what to tell about that."""

    size: int = 1
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Dimension:
    """One dimension of an input: its number, or its name; one without a name is called by input and axis."""

    input: str
    axis: int
    size: int | None
    name: str


def data_inputs(model: Any) -> list[Any]:
    """Return the graph's inputs that are no initialisers."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return [one for one in model.graph.input if one.name not in stored]


def set_sizes(model: Any, sizes: Mapping[str, int], path: Path) -> Batch:
    """Put numbers for all symbolic dimensions of the inputs into ``model``, and return its batch.

    Raises
    ------
    SpecError
        For an input without a shape, a dimension without a size, and a size that is no dimension's or impossible.
    """
    dimensions = list(_dimensions(model, path))
    symbolic = list(dict.fromkeys(one.name for one in dimensions if one.size is None))
    faults = list(_size_faults(sizes, symbolic, path))
    if faults:
        raise SpecError.of(faults)
    name, batch = _batch(dimensions, symbolic, sizes)
    given = {**dict.fromkeys(name, 1), **sizes}
    if missing := [one for one in symbolic if one not in given]:
        written = ", ".join(missing)
        example = ", ".join(f"{_quoted(one)}: 128" for one in missing)
        problem = f"the dimensions {written} have no size." if missing[1:] else f"the dimension {written} has no size."
        mend = f"Give the size of each for one sample: dimensions: {{{example}}}."
        raise refuse(path, problem, mend, field="dimensions", value=written)
    _substitute(model, given)
    return batch


def _quoted(name: str) -> str:
    """Return a name as YAML takes it for a key."""
    return name if name.replace("_", "a").isalnum() else f'"{name}"'


def _dimensions(model: Any, path: Path) -> Iterator[_Dimension]:
    """Yield every dimension of every input that is a tensor."""
    for one in data_inputs(model):
        if not one.type.HasField("tensor_type"):
            continue
        if not one.type.tensor_type.HasField("shape"):
            problem = f"the input {one.name!r} has no shape."
            raise refuse(path, problem, "Export the model with a shape for every input.", value=one.name)
        for axis, dim in enumerate(one.type.tensor_type.shape.dim):
            is_fixed = dim.HasField("dim_value") and dim.dim_value > 0
            if is_fixed and dim.dim_value > _MOST_SIZE:
                problem = f"the input {one.name!r} has a dimension of {dim.dim_value}."
                raise refuse(path, problem, "Export the model again.", value=str(dim.dim_value))
            yield _Dimension(one.name, axis, dim.dim_value if is_fixed else None, dim.dim_param or f"{one.name}.{axis}")


def _size_faults(sizes: Mapping[str, int], symbolic: list[str], path: Path) -> Iterator[Fault]:
    """Yield what is wrong with the sizes that were given."""
    for name, size in sizes.items():
        field = f"dimensions.{name}"
        if name not in symbolic:
            known = ", ".join(symbolic) if symbolic else "none: all are numbers"
            problem = f"the model has no dimension {name!r} without a size. It has {known}."
            yield Fault(file=str(path), field=field, value=name, problem=problem, mend="Leave it out, or correct it.")
        elif isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _MOST_SIZE:
            problem = f"{size!r} is no size."
            mend = f"Write a whole number from 1 to {_MOST_SIZE}."
            yield Fault(file=str(path), field=field, value=str(size), problem=problem, mend=mend)


def _batch(dimensions: list[_Dimension], symbolic: list[str], sizes: Mapping[str, int]) -> tuple[list[str], Batch]:
    """Return the names of the dimensions that become 1, and the batch."""
    called = [name for name in symbolic if name.lower() in _BATCH_WORDS]
    if called:
        size = sizes.get(called[0], 1)
        names = [name for name in called[:1] if name not in sizes]
        return names, Batch(size=size, notes=_fixed_note(size, called[0]))
    leading = [one for one in dimensions if one.axis == 0]
    if not leading:
        return [], Batch()
    first = leading[0]
    if first.size is None:
        unnamed = {f"{one.input}.0" for one in leading}
        names = [one.name for one in leading if one.name == first.name or {first.name, one.name} <= unnamed]
        size = sizes.get(first.name, 1)
        kept = [name for name in dict.fromkeys(names) if name not in sizes]
        note = f"The dimension {first.name} is taken as the batch, because it leads the first input."
        return kept, Batch(size=size, notes=(note, *_fixed_note(size, first.name)))
    if any(one.size != first.size for one in leading):
        what = "The inputs have different leading dimensions: one pass through the graph is taken as one sample."
        return [], Batch(warnings=(what,))
    return [], Batch(size=first.size, notes=_fixed_note(first.size, f"leading dimension of {first.input}"))


def _fixed_note(size: int, what: str) -> tuple[str, ...]:
    """Return what to tell where the graph computes several samples."""
    return () if size == 1 else (f"The graph computes {size} samples at a time ({what}); figures are divided by that.",)


def _substitute(model: Any, given: Mapping[str, int]) -> None:
    """Replace names by numbers in all shapes, of bodies, too; other names go, for inference to find the sizes."""
    for one in data_inputs(model):
        for axis, dim in enumerate(one.type.tensor_type.shape.dim):
            name = dim.dim_param or f"{one.name}.{axis}"
            if not (dim.HasField("dim_value") and dim.dim_value > 0):
                dim.dim_value = given[name]
    _substitute_in(model.graph, given)


def _substitute_in(graph: Any, given: Mapping[str, int]) -> None:
    """Replace names in the shapes of one graph and its bodies."""
    for one in (*graph.input, *graph.output, *graph.value_info):
        for dim in one.type.tensor_type.shape.dim if one.type.HasField("tensor_type") else ():
            if dim.HasField("dim_param"):
                if dim.dim_param in given:
                    dim.dim_value = given[dim.dim_param]
                else:
                    dim.ClearField("dim_param")
            elif dim.HasField("dim_value") and dim.dim_value < 0:
                dim.ClearField("dim_value")
    for node in graph.node:
        for attribute in node.attribute:
            for body in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                _substitute_in(body, given)
