"""Reading an ONNX file: its bytes, its limits, and the data that it keeps in other files, which are never opened.

A model's weights are not needed to plan its training, only their shapes: the data of large tensors is thrown away as
soon as the file is parsed, so that everything after it handles a few hundred kilobytes. A protobuf message holds at
most 2 GiB; larger models keep their data in files beside the graph.
"""

import importlib
from collections.abc import Iterator
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from numpy.typing import NDArray

from planner.errors import Fault, SpecError

__all__ = ["MOST_FILE_BYTES", "MOST_VALUES", "load_model", "onnx_module", "refuse", "values_of"]

MOST_FILE_BYTES = 2**31 - 1  # protobuf's own limit
MOST_VALUES = 1024  # of a tensor whose values may matter: shapes, axes, factors
_MOST_NODES = 200_000
_MOST_TENSORS = 200_000
_MOST_RANK = 16
_MOST_ELEMENTS = 2**50
_MOST_DEPTH = 8
_DATA = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_EXTERNAL = 1  # TensorProto.DataLocation


def onnx_module(name: str = "onnx") -> Any:
    """Return the library, or one of its modules; the mend says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        mend = "Install it: pip install 'training-planner[onnx]'."
        raise SpecError.of([Fault(problem="reading an ONNX file needs the package onnx.", mend=mend)]) from None


def values_of(tensor: Any) -> NDArray[Any] | None:
    """Return the values of a small tensor that the file holds; None of a large one, and of what is kept elsewhere.

    None, too, where the library cannot decode them, since they are cut off or of a type without numbers: what rests on
    such values is not known then, and is said to be so where it matters.
    """
    if prod(tensor.dims) > MOST_VALUES or tensor.data_location == _EXTERNAL:
        return None
    try:
        found: NDArray[Any] = onnx_module("onnx.numpy_helper").to_array(tensor)
    except (ValueError, TypeError, KeyError, NotImplementedError):  # cut off, or a type without numbers, see above
        return None
    return found


def refuse(path: Path, problem: str, mend: str, *, field: str = "", value: str = "") -> SpecError:
    """Return the error for one fault of the file."""
    return SpecError.of([Fault(file=str(path), field=field, value=value[:80], problem=problem, mend=mend)])


def load_model(path: Path) -> Any:
    """Return the model (``onnx.ModelProto``) without the data of its large tensors, functions put in their place.

    Raises
    ------
    SpecError
        If it is no file that can be read, larger than 2 GiB, truncated or no ONNX model, beyond the limits of numbers
        of operators and tensors, or keeps data outside of its own folder.
    """
    onnx = onnx_module()
    _check_size(path)
    message = importlib.import_module("google.protobuf.message")
    try:
        model = onnx.ModelProto.FromString(path.read_bytes())
    except message.DecodeError:
        raise refuse(
            path, "this is no ONNX model, or only a part of one.", "Export or copy it again, and give the .onnx file."
        ) from None
    except OSError as error:
        raise refuse(path, f"it cannot be read: {error.strerror}.", "Check the path and its permissions.") from None
    if not model.graph.node:
        raise refuse(path, "there is no operator in it.", "Is it an ONNX model, and whole? Export or copy it again.")
    if not model.opset_import:
        mend = "Is it whole? Export or copy it again."
        raise refuse(path, "it does not say which operator set it uses (opset_import).", mend)
    faults = [fault for fault in _faults(model, path) if fault is not None]
    if faults:
        raise SpecError.of(faults[:20])
    # A parsed message keeps the memory of what was cleared: only a copy is small.
    return _inlined(onnx.ModelProto.FromString(model.SerializeToString()), path)


def _check_size(path: Path) -> None:
    """Refuse what is no regular file of reasonable size, before anything of it is read."""
    try:
        if path.is_dir():
            raise refuse(path, "this is a folder, not a file.", "Name the .onnx file in it.")
        if not path.exists():
            mend = "Check the path; paths inside a spec are relative to the spec."
            raise refuse(path, "there is no such file.", mend)
        if not path.is_file():
            raise refuse(path, "this is not a regular file.", "Name a regular file.")
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        raise refuse(path, f"it cannot be read: {error}.", "Check the path and its permissions.") from None
    if not size:
        raise refuse(path, "the file is empty.", "Export or copy it again.")
    if size > MOST_FILE_BYTES:
        mend = (
            "Save it with its weights in a file of their own, "
            "onnx.save(model, 'model.onnx', save_as_external_data=True), "
            "and give the graph; the weights need not be there."
        )
        raise refuse(path, f"it holds {size} bytes; an ONNX file of more than 2 GiB cannot be parsed.", mend)


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
    """Yield a node and what its attributes hold."""
    yield node
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for body in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
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
    num_elements = 1
    for size in tensor.dims:
        num_elements *= size
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
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    is_outside = posix.is_absolute() or windows.drive or windows.root or ".." in (*posix.parts, *windows.parts)
    if location and not is_outside and "\0" not in location:
        return None
    problem = (
        f"tensor {name!r} keeps its data in {location[:80]!r}, outside of the model's folder."
        if location
        else f"tensor {name!r} says that its data is in another file, but not in which."
    )
    mend = "Put the data beside the model, and save it with a plain file name as location."
    return Fault(file=str(path), field="external_data.location", value=location[:80], problem=problem, mend=mend)


def _inlined(model: Any, path: Path) -> Any:
    """Return the model with its own functions put in the place of their calls."""
    if not model.functions:
        return model
    _check_functions(model, path)
    try:
        inlined = onnx_module("onnx.inliner").inline_local_functions(model)
    except Exception as error:  # the library raises whatever its C++ part throws
        problem = f"its functions cannot be put in their places: {str(error)[:200]}."
        raise refuse(path, problem, "Export it again, without functions.") from None
    return inlined


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
        count = 0
        for node in nodes:
            for place in _places_of_node(node, 0):
                if hasattr(place, "op_type"):
                    key = (place.domain, place.op_type)
                    count += size_of(key) if key in functions else 1
        return count

    if total(model.graph.node) > _MOST_NODES:
        problem = f"with its functions in their places it has more than {_MOST_NODES} operators."
        raise refuse(path, problem, "Is it the right file?")
