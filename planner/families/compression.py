"""Compression of gradients, as a given configuration says it."""

from collections.abc import Mapping
from typing import Any

from planner.models.compression import Compression

__all__ = ["compression_of"]


def compression_of(given: Mapping[str, Any] | None) -> Compression | None:
    """Return the compression of a block."""
    return None if given is None else Compression(removed=given["removed"], scale_s=given["time"])
