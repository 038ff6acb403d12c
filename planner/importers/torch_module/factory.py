"""Modules that a function makes which the user names, ``package.module:factory``.

:func:`read_factory` is the only reader that runs code of others. Nothing but a name that the user typed leads here.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from planner.errors import Fault, SpecError
from planner.importers.imported import Imported
from planner.importers.torch_module.copy import last_line
from planner.importers.torch_module.library import load_torch
from planner.importers.torch_module.network import from_torch

__all__ = ["read_factory"]

_FIELD = "dnn.torch"


def read_factory(named: str, folder: Path | None) -> Imported:
    """Return the network of the module that a function makes.

    Parameters
    ----------
    named
        ``package.module:function``. The function takes no arguments and returns a module and its example, ``(module,
        example)`` as :func:`from_torch` takes them, or a module with an attribute
        ``example_input``.
    folder
        Where to look for the package first; None for the installed ones alone.

    Raises
    ------
    SpecError
        If torch is missing, the name leads nowhere, the user's code raises (its last line is told), or what it returns
        is no module with an example.
    """
    torch = load_torch()
    package, separator, function = named.partition(":")
    parts = [*package.split("."), *function.split(".")]
    if not separator or not all(part.isidentifier() for part in parts):
        raise _fault(named, f"{named!r} is no name of a factory.", "Write package.module:function.")
    # What the user's code prints goes beside the answer, not into it: that may be one JSON document.
    with redirect_stdout(sys.stderr), _found_in(folder):
        try:
            factory: object = importlib.import_module(package)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{package}.".startswith(f"{error.name}."):
                where = f" in {folder}, nor is it installed" if folder is not None else " installed"
                raise _fault(named, f"there is no module {error.name!r}{where}.", "Check the name.") from None
            raise _broken(named, "cannot be imported", error) from error
        except (Exception, SystemExit) as error:  # whatever the user's code raises
            raise _broken(named, "cannot be imported", error) from error
        for part in function.split("."):
            if not hasattr(factory, part):
                raise _fault(named, f"module {package!r} has no {function!r}.", "Check the function's name.")
            factory = getattr(factory, part)
        if not callable(factory):
            raise _fault(named, f"{function!r} is no function.", "Name a function that returns (module, example).")
        try:
            made: object = factory()
        except (Exception, SystemExit) as error:  # as above
            raise _broken(named, "fails", error) from error
        if isinstance(made, tuple) and len(made) == 2:
            module, example = made
        else:
            module, example = made, getattr(made, "example_input", None)
        if not isinstance(module, torch.nn.Module) or example is None:
            raise _fault(
                named,
                f"it returns {_what(made)}, not a module with an example.",
                "Return (module, example), or give the module an attribute example_input.",
            )
        return from_torch(module, example)


@contextmanager
def _found_in(folder: Path | None) -> Iterator[None]:
    """Look for modules in a folder first."""
    before = list(sys.path)
    if folder is not None:
        sys.path.insert(0, str(folder.resolve()))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def _what(made: object) -> str:
    """Return what came back, in words."""
    if isinstance(made, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in made[:5]) or 'nothing'}"
    return f"a {type(made).__name__}"


def _broken(named: str, what: str, error: BaseException) -> SpecError:
    """Return an error for code that raises."""
    return _fault(named, f"{named} {what}: {last_line(error)}.", "Run it by itself, and mend it.")


def _fault(named: str, problem: str, mend: str) -> SpecError:
    """Return an error with one fault at the name."""
    return SpecError.of([Fault(field=_FIELD, value=named, problem=problem, mend=mend)])
