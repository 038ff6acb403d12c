"""Reading an ONNX file: its bytes, its limits, the data that it keeps elsewhere, and the sizes of its dimensions.

A model's weights are not needed to plan its training, only their shapes: the data of large tensors is thrown away as
soon as the file is parsed, so that everything after it handles a few hundred kilobytes; files beside it are never
opened. A protobuf message holds at most 2 GiB; larger models keep their data in files beside the graph.

Of the symbolic dimensions the batch becomes 1, every other one is given by name. The batch is the one called ``batch``,
``batch_size``, ``N`` or the like, wherever it stands; else the leading dimension of the first input. Where it is a
fixed number, all figures are divided by that.
"""

import importlib
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import Fault, SpecError
from planner.frozen import frozen
from planner.importers.text import refuse

if TYPE_CHECKING:
    import onnx

MOST_FILE_BYTES = 2**31 - 1  # protobuf's own limit
MOST_VALUES = 1024  # of a tensor whose values may matter: shapes, axes, factors
_MOST_NODES = 200_000
_MOST_TENSORS = 200_000
_MOST_RANK = 16
_MOST_ELEMENTS = 2**50
_MOST_DEPTH = 8
_MOST_SIZE = 2**31
_DATA = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_EXTERNAL = 1  # TensorProto.DataLocation
_BATCH_WORDS = {"b", "batch", "batch_size", "batchsize", "bs", "n", "batch_dim", "num_samples"}


def onnx_module(name: str = "onnx") -> ModuleType:
    """Return the library, or one of its modules; the hint says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        hint = "Install it: pip install 'training-planner[onnx]'."
        raise SpecError.one("reading an ONNX file needs the package onnx.", hint) from None


def values_of(tensor: "onnx.TensorProto") -> NDArray[np.generic] | None:
    """Return the values of a small tensor that the file holds; None of a large one, and of what is kept elsewhere.

    None, too, where the library cannot decode them, since they are cut off or of a type without numbers: what rests on
    such values is not known then, and is said to be so where it matters.
    """
    if prod(tensor.dims) > MOST_VALUES or tensor.data_location == _EXTERNAL:
        return None
    try:
        found: NDArray[np.generic] = onnx_module("onnx.numpy_helper").to_array(tensor)
    except (ValueError, TypeError, KeyError, NotImplementedError):  # cut off, or a type without numbers, see above
        return None
    return found


def bodies_of(node: "onnx.NodeProto") -> list["onnx.GraphProto"]:
    """Return the bodies of a branch or a loop."""
    return [
        body
        for attribute in node.attribute
        for body in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs)
    ]


def load_model(path: Path) -> "onnx.ModelProto":
    """Return the model (``onnx.ModelProto``) without the data of its large tensors, functions put in their place.

    Raises
    ------
    SpecError
        If it is no file that can be read, larger than 2 GiB, truncated or no ONNX model, beyond the limits of numbers
        of operators and tensors, or keeps data outside of its own folder.
    """
    library = onnx_module()
    _check_size(path)
    try:
        model = library.ModelProto.FromString(path.read_bytes())
    except importlib.import_module("google.protobuf.message").DecodeError:
        problem = "this is no ONNX model, or only a part of one."
        raise refuse(path, problem, "Export or copy it again, and give the .onnx file.") from None
    except OSError as error:
        raise refuse(path, f"it cannot be read: {error.strerror}.", "Check the path and its permissions.") from None
    if not model.graph.node:
        raise refuse(path, "there is no operator in it.", "Is it an ONNX model, and whole? Export or copy it again.")
    if not model.opset_import:
        hint = "Is it whole? Export or copy it again."
        raise refuse(path, "it does not say which operator set it uses (opset_import).", hint)
    faults = [fault for fault in _faults(model, path) if fault is not None]
    if faults:
        raise SpecError.of(faults[:20])
    # A parsed message keeps the memory of what was cleared: only a copy is small.
    small: onnx.ModelProto = library.ModelProto.FromString(model.SerializeToString())
    if not small.functions:
        return small
    _check_functions(small, path)
    try:
        inlined: onnx.ModelProto = onnx_module("onnx.inliner").inline_local_functions(small)
    except Exception as error:  # the library raises whatever its C++ part throws
        problem = f"its functions cannot be put in their places: {str(error)[:200]}."
        raise refuse(path, problem, "Export it again, without functions.") from None
    return inlined


def _check_size(path: Path) -> None:
    """Refuse what is no regular file of reasonable size, before anything of it is read."""
    try:
        if path.is_dir():
            raise refuse(path, "this is a folder, not a file.", "Name the .onnx file in it.")
        if not path.exists():
            hint = "Check the path; paths inside a spec are relative to the spec."
            raise refuse(path, "there is no such file.", hint)
        if not path.is_file():
            raise refuse(path, "this is not a regular file.", "Name a regular file.")
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        raise refuse(path, f"it cannot be read: {error}.", "Check the path and its permissions.") from None
    if not size:
        raise refuse(path, "the file is empty.", "Export or copy it again.")
    if size > MOST_FILE_BYTES:
        hint = (
            "Save it with its weights in a file of their own, "
            "onnx.save(model, 'model.onnx', save_as_external_data=True), "
            "and give the graph; the weights need not be there."
        )
        raise refuse(path, f"it holds {size} bytes; an ONNX file of more than 2 GiB cannot be parsed.", hint)


def _faults(model: Any, path: Path) -> Iterator[Fault | None]:
    """Yield what is wrong with nodes and tensors, and drop the data of large tensors on the way."""
    num_nodes = num_tensors = 0
    for place in _places(model.graph, 0):
        if isinstance(place, str):
            yield Fault(file=str(path), problem=place, mend="Export the model again.")
            return
        is_node = hasattr(place, "op_type")
        num_nodes, num_tensors = num_nodes + is_node, num_tensors + (not is_node)
        if num_nodes > _MOST_NODES or num_tensors > _MOST_TENSORS:
            what = f"it has more than {_MOST_NODES} operators or {_MOST_TENSORS} tensors."
            yield Fault(file=str(path), problem=what, mend="Is it the right file?")
            return
        yield _name_fault(place, path) if is_node else _tensor_fault(place, path)
    for one in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        yield _name_fault(one, path)
    for function in model.functions:
        for node in function.node:
            for place in _places_of_node(node, 0):
                if not isinstance(place, str):
                    yield _name_fault(place, path) if hasattr(place, "op_type") else _tensor_fault(place, path)


def _places(graph: Any, depth: int) -> Iterator[Any]:
    """Yield every node and tensor of a graph and of the bodies in it; a text where they are nested too deep."""
    if depth > _MOST_DEPTH:
        yield f"bodies of loops and branches are nested more than {_MOST_DEPTH} deep."
        return
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _places_of_node(node, depth)


def _places_of_node(node: Any, depth: int) -> Iterator[Any]:
    yield node
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
    for body in bodies_of(node):
        yield from _places(body, depth + 1)


def _name_fault(place: Any, path: Path) -> Fault | None:
    """Return a fault where a node or a value has a name that is no text: the parser hands it on as bytes."""
    names = [place.name]
    if hasattr(place, "op_type"):
        names += [place.op_type, place.domain, *place.input, *place.output, *(one.name for one in place.attribute)]
    elif place.type.HasField("tensor_type"):
        names += [dim.dim_param for dim in place.type.tensor_type.shape.dim]
    wrong = next((name for name in names if not isinstance(name, str)), None)
    if wrong is None:
        return None
    return Fault(file=str(path), problem=f"the name {wrong[:40]!r} is no UTF-8 text.", mend="Export the model again.")


def _tensor_fault(tensor: Any, path: Path) -> Fault | None:
    """Return what is wrong with a tensor's size or the place of its data; its data goes where it is large."""
    name = tensor.name or "(a constant without a name)"
    if not isinstance(name, str):
        return Fault(file=str(path), problem=f"the name {name[:40]!r} is no UTF-8 text.", mend="Export it again.")
    num_elements = prod(tensor.dims)
    if len(tensor.dims) > _MOST_RANK or min(tensor.dims, default=0) < 0 or not 0 <= num_elements <= _MOST_ELEMENTS:
        dims = str(list(tensor.dims))
        problem = f"tensor {name!r} has the impossible dimensions {dims[:80]}."
        return Fault(file=str(path), field="dims", value=dims[:80], problem=problem, mend="Export the model again.")
    if tensor.data_location == _EXTERNAL:
        return _location_fault(tensor, name, path)
    if num_elements > MOST_VALUES:
        for part in _DATA:
            tensor.ClearField(part)
    return None


def _location_fault(tensor: Any, name: str, path: Path) -> Fault | None:
    """Refuse data in a file that does not lie in the model's folder, although it would not be read."""
    location = {entry.key: entry.value for entry in tensor.external_data}.get("location", "")
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    is_outside = posix.is_absolute() or windows.drive or windows.root or ".." in (*posix.parts, *windows.parts)
    if location and not is_outside and "\0" not in location:
        return None
    problem = (
        f"tensor {name!r} keeps its data in {location[:80]!r}, outside of the model's folder."
        if location
        else f"tensor {name!r} says that its data is in another file, but not in which."
    )
    hint = "Put the data beside the model, and save it with a plain file name as location."
    return Fault(file=str(path), field="external_data.location", value=location[:80], problem=problem, mend=hint)


def _check_functions(model: Any, path: Path) -> None:
    """Refuse functions that call themselves, or that would grow beyond the limit of operators."""
    functions = {(one.domain, one.name): one for one in model.functions}
    sizes: dict[tuple[str, str], int] = {}
    open_: set[tuple[str, str]] = set()

    def size_of(key: tuple[str, str]) -> int:
        if key in sizes:
            return sizes[key]
        if key in open_ or len(open_) > 4 * _MOST_DEPTH:
            problem = f"function {key[1]!r} calls itself, or functions are nested too deep."
            raise refuse(path, problem, "Export it again, without functions.")
        open_.add(key)
        sizes[key] = total(functions[key].node)
        open_.discard(key)
        return sizes[key]

    def total(nodes: Any) -> int:
        places = (place for node in nodes for place in _places_of_node(node, 0) if hasattr(place, "op_type"))
        keys = ((place.domain, place.op_type) for place in places)
        return sum(size_of(key) if key in functions else 1 for key in keys)

    if total(model.graph.node) > _MOST_NODES:
        problem = f"with its functions in their places it has more than {_MOST_NODES} operators."
        raise refuse(path, problem, "Is it the right file?")


# -- sizes of symbolic dimensions ------------------------------------------------------------------------------------


@frozen
class Batch:
    """Samples that one pass through the graph computes, and what to tell about that."""

    size: int = 1
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@frozen(kw_only=False)
class _Dimension:
    """One dimension of an input: its number, or its name; one without a name is called by input and axis."""

    input: str
    axis: int
    size: int | None
    name: str


def data_inputs(model: "onnx.ModelProto") -> list["onnx.ValueInfoProto"]:
    """Return the graph's inputs that are no initialisers."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return [one for one in model.graph.input if one.name not in stored]


def set_sizes(model: "onnx.ModelProto", sizes: Mapping[str, int], path: Path) -> Batch:
    """Put numbers for all symbolic dimensions of the inputs into ``model``, and return its batch.

    Parameters
    ----------
    model
        An ``onnx.ModelProto``, which is changed: the shapes in it lose their names.
    sizes
        Of dimensions by name, of one sample.

    Raises
    ------
    SpecError
        For an input without a shape, a dimension without a size, and a size that is no dimension's or impossible.
    """
    dimensions = list(_dimensions(model, path))
    symbolic = list(dict.fromkeys(one.name for one in dimensions if one.size is None))
    if faults := list(_size_faults(sizes, symbolic, path)):
        raise SpecError.of(faults)
    ones, batch = _batch(dimensions, symbolic, sizes)
    given = {**dict.fromkeys(ones, 1), **sizes}
    if missing := [one for one in symbolic if one not in given]:
        written = ", ".join(missing)
        keys = [name if name.replace("_", "a").isalnum() else f'"{name}"' for name in missing]  # as YAML takes it
        problem = f"the dimensions {written} have no size." if missing[1:] else f"the dimension {written} has no size."
        hint = f"Give the size of each for one sample: dimensions: {{{', '.join(f'{key}: 128' for key in keys)}}}."
        raise refuse(path, problem, hint, field="dimensions", value=written)
    for one in data_inputs(model):
        for axis, dim in enumerate(one.type.tensor_type.shape.dim):
            if not (dim.HasField("dim_value") and dim.dim_value > 0):
                dim.dim_value = given[dim.dim_param or f"{one.name}.{axis}"]
    _substitute(model.graph, given)
    return batch


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
            listed = ", ".join(symbolic) if symbolic else "none: all are numbers"
            problem = f"the model has no dimension {name!r} without a size. It has {listed}."
            yield Fault(file=str(path), field=field, value=name, problem=problem, mend="Leave it out, or correct it.")
        elif isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _MOST_SIZE:
            problem = f"{size!r} is no size."
            hint = f"Write a whole number from 1 to {_MOST_SIZE}."
            yield Fault(file=str(path), field=field, value=str(size), problem=problem, mend=hint)


def _batch(dimensions: list[_Dimension], symbolic: list[str], sizes: Mapping[str, int]) -> tuple[list[str], Batch]:
    """Return the names of the dimensions that become 1, and the batch."""

    def of(size: int, what: str) -> tuple[str, ...]:
        told = f"The graph computes {size} samples at a time ({what}); figures are divided by that."
        return () if size == 1 else (told,)

    called = next((name for name in symbolic if name.lower() in _BATCH_WORDS), None)
    if called is not None:
        size = sizes.get(called, 1)
        return [called], Batch(size=size, notes=of(size, called))
    leading = [one for one in dimensions if one.axis == 0]
    if not leading:
        return [], Batch()
    first = leading[0]
    if first.size is None:
        unnamed = {f"{one.input}.0" for one in leading}
        names = [one.name for one in leading if one.name == first.name or {first.name, one.name} <= unnamed]
        size = sizes.get(first.name, 1)
        note = f"The dimension {first.name} is taken as the batch, because it leads the first input."
        return names, Batch(size=size, notes=(note, *of(size, first.name)))
    if any(one.size != first.size for one in leading):
        what = "The inputs have different leading dimensions: one pass through the graph is taken as one sample."
        return [], Batch(warnings=(what,))
    return [], Batch(size=first.size, notes=of(first.size, f"leading dimension of {first.input}"))


def _substitute(graph: Any, given: Mapping[str, int]) -> None:
    """Replace names by numbers in the shapes of a graph and its bodies; other names go, for inference to find them."""
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
        for body in bodies_of(node):
            _substitute(body, given)
