"""A module without memory: its copy on torch's meta device, and the sample that goes with it.

Tensors of the meta device have shapes and types, but no numbers, so that a network of any size fits. The user's module
is left as it is: a deep copy is told beforehand what stands for each tensor.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import Fault, SpecError

__all__ = ["Sample", "copy_to_meta", "fault_of", "last_line", "sample_of"]

_MOST_KNOWN = 2**20  # numbers of an example's tensor whose values are looked at


@dataclass(frozen=True, slots=True)
class Sample:
    """What a module is called with.

    Attributes
    ----------
    tensors
        Every tensor of the call, on the meta device, by a name.
    values
        Their numbers where they are integers or booleans and few: what a module asks of them can be answered.
    call
        Calls a module.
    """

    tensors: Mapping[str, Any]
    values: Mapping[str, Any]
    call: Callable[[Any], Any]


def copy_to_meta(torch: Any, module: Any) -> Any:
    """Return a copy of a module on the meta device.

    Raises
    ------
    SpecError
        If the module cannot be copied.
    """
    memo: dict[int, Any] = {}
    for one in module.modules():
        for held in (*one._parameters.values(), *one._buffers.values(), *_tensors_in(torch, vars(one))):
            if held is not None and id(held) not in memo:
                memo[id(held)] = _empty(torch, held)
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:  # what the user's objects raise when they are copied
        raise fault_of(
            f"the module {type(module).__name__} cannot be copied: {last_line(error)}.",
            "Give the plain module, before it is wrapped (DistributedDataParallel, FSDP, torch.compile).",
        ) from None


def sample_of(torch: Any, example: Any, parameters: list[str], *, times: int = 1) -> tuple[Sample, int]:
    """Return the sample and its batch: the leading dimension of the first tensor.

    Parameters
    ----------
    example
        A tensor, a tuple or list of positional arguments, a mapping of keyword arguments, or a tuple of both.
    parameters
        Names of the module's arguments.
    times
        By how much to multiply every leading dimension that equals the batch.

    Raises
    ------
    SpecError
        If there is no tensor in it, or the first one has no dimension.
    """
    args, kwargs = _arguments(torch, example)
    pytree = torch.utils._pytree
    leaves, spec = pytree.tree_flatten((args, kwargs))
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not given or not given[0].dim() or not given[0].shape[0]:
        problem = "has no tensor" if not given else f"begins with a tensor of shape {tuple(given[0].shape)}"
        raise fault_of(
            f"the example {problem}, so that there is no batch.",
            "Give a tensor whose first dimension is the batch, a tuple of arguments, or a dict of keyword arguments.",
        )
    batch = given[0].shape[0]
    names = iter(_names(torch, args, kwargs, parameters))
    tensors: dict[str, Any] = {}
    values: dict[str, Any] = {}
    stand_ins = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            stand_ins.append(leaf)
            continue
        name = next(names)
        real = _repeated(torch, leaf.detach(), batch, times)
        tensors[name] = torch.empty_like(real, device="meta", requires_grad=leaf.requires_grad)
        if leaf.device.type != "meta" and not real.is_floating_point() and real.numel() <= _MOST_KNOWN:
            values[name] = real.cpu()
        stand_ins.append(tensors[name])
    args, kwargs = pytree.tree_unflatten(stand_ins, spec)
    return Sample(tensors, values, lambda module: module(*args, **kwargs)), batch


def last_line(error: BaseException) -> str:
    """Return the kind of an error and the last line that says something, at most 300 characters, without its stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:300].rstrip('.') if lines else 'no message'}"


def fault_of(problem: str, mend: str) -> SpecError:
    """Return an error with one fault."""
    return SpecError.of([Fault(problem=problem, mend=mend)])


def _tensors_in(torch: Any, held: Any, depth: int = 0) -> list[Any]:
    """Return the tensors among a module's plain attributes, also in lists and dicts."""
    if isinstance(held, torch.Tensor):
        return [held]
    if depth > 3 or not isinstance(held, dict | list | tuple):
        return []
    values = list(held.values()) if isinstance(held, dict) else held
    return [tensor for value in values for tensor in _tensors_in(torch, value, depth + 1)]


def _empty(torch: Any, held: Any) -> Any:
    """Return what stands for a parameter, a buffer or another tensor."""
    nn = torch.nn.parameter
    if isinstance(held, nn.UninitializedParameter):
        return nn.UninitializedParameter(requires_grad=held.requires_grad, device="meta", dtype=held.dtype)
    if isinstance(held, nn.UninitializedBuffer):
        return nn.UninitializedBuffer(device="meta", dtype=held.dtype)
    empty = torch.empty_like(held.detach(), device="meta")
    if isinstance(held, torch.nn.Parameter):
        return torch.nn.Parameter(empty, requires_grad=held.requires_grad)
    return empty.requires_grad_(held.requires_grad)


def _arguments(torch: Any, example: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments."""
    if isinstance(example, Mapping):
        return [], {str(key): value for key, value in example.items()}
    if isinstance(example, tuple) and len(example) == 2 and isinstance(example[0], tuple):
        args, kwargs = example
        if isinstance(kwargs, Mapping):
            return list(args), {str(key): value for key, value in kwargs.items()}
    return (list(example), {}) if isinstance(example, tuple | list) else ([example], {})


def _names(torch: Any, args: list[Any], kwargs: dict[str, Any], parameters: list[str]) -> list[str]:
    """Return a name for every tensor of the call, in order: of its argument, numbered where that holds several."""
    named = [*zip([*parameters, *(f"input{i}" for i in range(len(parameters), len(args)))], args, strict=False)]
    names = []
    for name, value in [*named, *kwargs.items()]:
        held = [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        names += [name if len(held) == 1 else f"{name}.{i}" for i in range(len(held))]
    return names if len(names) != 1 else ["input"]


def _repeated(torch: Any, tensor: Any, batch: int, times: int) -> Any:
    """Return a tensor with its leading dimension multiplied, where that is the batch."""
    if times == 1 or not tensor.dim() or tensor.shape[0] != batch:
        return tensor
    if tensor.is_floating_point() or tensor.device.type == "meta" or tensor.numel() > _MOST_KNOWN:
        return torch.empty((times * batch, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
    return torch.cat([tensor] * times)
