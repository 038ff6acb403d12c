"""Numbers of tensors that have no memory, where they follow from shapes alone.

Positions and masks are computed along, where they are few, and so is what is made of the example's whole numbers:
modules ask such questions as "is nothing masked?", and get the true answer. What asks for a number of a weight or of
what was computed with one gets none.
"""

import contextlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planner.importers.torch_module.library import is_random

__all__ = ["KnownNumbers", "NeedsValuesError"]

_MOST_KNOWN = 2**20  # numbers of one tensor that are computed along


class NeedsValuesError(RuntimeError):
    """A module asks for a number that a tensor without memory does not have."""


class KnownNumbers:
    """The numbers of tensors by their place in their storage; views share theirs as the tensors do.

    Parameters
    ----------
    storage_of
        Gives the number of a tensor's storage, which must never be used again.
    """

    def __init__(self, torch: Any, storage_of: Callable[[Any], int]) -> None:
        self._torch, self._storage_of = torch, storage_of
        self._values: dict[int, dict[object, Any]] = {}
        self._without_modes = importlib.import_module("torch.utils._python_dispatch")._disable_current_modes

    def know(self, tensor: Any, real: Any) -> None:
        """Keep the numbers of a tensor."""
        self._values.setdefault(self._storage_of(tensor), {})[_place(tensor)] = real

    def value(self, tensor: Any) -> Any:
        """Return the one number of a tensor.

        Raises
        ------
        NeedsValuesError
            If it is not known.
        """
        real = self._known(tensor)
        if real is None:
            raise NeedsValuesError("the module asks for a value that depends on the sample or on weights")
        return real.item()

    def of(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the numbers of tensors; None for each whose numbers are not known."""
        return [self._known(tensor) for tensor in tensors]

    def compute(self, function: Any, args: Any, kwargs: Any, given: Mapping[int, Any], outputs: Sequence[Any]) -> None:
        """Compute an operator's numbers where those of all its inputs are known; else forget what it overwrites.

        Parameters
        ----------
        given
            The numbers of its inputs, by the inputs' identity, as they were known before it ran.
        """
        is_small = all(out.numel() <= _MOST_KNOWN for out in outputs)
        if all(real is not None for real in given.values()) and is_small and not is_random(self._torch, function):
            with contextlib.suppress(Exception), self._without_modes():
                result = function(*self._real(args, given), **self._real(kwargs, given))
                leaves = self._torch.utils._pytree.tree_leaves(result)
                found = [leaf for leaf in leaves if isinstance(leaf, self._torch.Tensor)]
                for out, real in zip(outputs, found, strict=True):
                    self.know(out, real)
                return
        if function._schema.is_mutable:
            for out in outputs:
                self._values.pop(self._storage_of(out), None)

    def _known(self, tensor: Any) -> Any:
        return self._values.get(self._storage_of(tensor), {}).get(_place(tensor))

    def _real(self, tree: Any, reals: Mapping[int, Any]) -> Any:
        """Return arguments with numbers in place of tensors without, on the CPU."""
        torch = self._torch

        def of(leaf: Any) -> Any:
            if isinstance(leaf, torch.device):
                return torch.device("cpu")
            # An alias: what turns its axes in place must not turn those of the tensor that is kept.
            return reals[id(leaf)].detach() if isinstance(leaf, torch.Tensor) else leaf

        return torch.utils._pytree.tree_map(of, tree)


def _place(tensor: Any) -> object:
    """Return where in its storage a tensor lies."""
    return (tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
