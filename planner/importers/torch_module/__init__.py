"""Networks of torch: from a module, or a factory that the user names, to layers, work and activations.

torch itself is imported when a module is read, not before.
"""

from planner.importers.torch_module.factory import read_factory
from planner.importers.torch_module.network import from_torch

__all__ = ["from_torch", "read_factory"]
