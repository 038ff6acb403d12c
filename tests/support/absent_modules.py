"""Modules that are not installed, as far as another package imports them: every name in them is a mock."""

import importlib.abc
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock, patch

__all__ = ["standing_in"]


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of packages that are named, and makes a mock of each."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = frozenset(packages)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return a spec for what no other finder has found, of these packages."""
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self._packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the mock as it is."""


@contextmanager
def standing_in(packages: Sequence[str], *, version: str) -> Iterator[None]:
    """Let packages that are not installed be imported, of a version."""
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    before, told = set(sys.modules), importlib.metadata.version

    def versions(name: str) -> str:
        return version if name.replace("-", "_") in absent else told(name)

    finder = _Finder(absent)
    sys.meta_path.append(finder)
    try:
        with patch("importlib.metadata.version", versions):
            yield
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in absent:
                del sys.modules[name]
