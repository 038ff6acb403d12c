"""Observers of torch's operators and functions.

Classes of torch can only be derived from once it is imported, so that they are made in functions.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["dispatch_mode", "fused_attention"]


def dispatch_mode(run: Callable[[Any, Any, Any], Any]) -> Any:
    """Return a mode that gives every operator, with its arguments, to ``run``."""
    base: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Mode(base):  # type: ignore[misc]  # torch is imported late, so that its classes are not known
        supports_higher_order_operators = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return run(func, args, kwargs or {})

    return Mode()


@contextlib.contextmanager
def fused_attention(
    torch: Any, within: Callable[[], AbstractContextManager[None]], save: Callable[[Any], None]
) -> Iterator[None]:
    """Take every scaled dot-product attention for one kernel, during a pass.

    The function's name is bound anew for that time: a mode does not see it inside of other functions of torch.
    """
    functional = torch.nn.functional
    attention = functional.scaled_dot_product_attention
    base: Any = torch.overrides.TorchFunctionMode

    def fused(*args: Any, **kwargs: Any) -> Any:
        with within():
            result = attention(*args, **kwargs)
        for tensor in (*args[:3], *(kwargs.get(name) for name in ("query", "key", "value"))):
            # Such a kernel keeps its inputs, and computes the scores again; its result is kept by who reads it.
            if isinstance(tensor, torch.Tensor) and result.requires_grad:
                save(tensor)
        return result

    class Mode(base):  # type: ignore[misc]  # see above
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return (fused if func is attention else func)(*args, **(kwargs or {}))

    functional.scaled_dot_product_attention = fused
    try:
        with Mode():
            yield
    finally:
        functional.scaled_dot_product_attention = attention
