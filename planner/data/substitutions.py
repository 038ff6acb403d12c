"""Blocks of layers that may take the place of others, as ``substitutions.yaml`` describes them."""

from copy import deepcopy
from functools import cache
from importlib import resources
from typing import Any

from planner.names import find, fold
from planner.yaml_text import plain_yaml

__all__ = ["block", "block_names", "find_block"]


@cache
def _blocks() -> dict[str, dict[str, Any]]:
    """Return the file's content; callers get copies."""
    text = resources.files("planner.data").joinpath("substitutions.yaml").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = plain_yaml(text)
    return found


def block_names() -> tuple[str, ...]:
    """Return the names of all blocks, in the file's order."""
    return tuple(_blocks())


def find_block(name: str) -> str:
    """Return the proper name of a block; raise SpecError, with the nearest one, if there is none."""
    return find(name, {fold(known): known for known in _blocks()}, "block")


def block(name: str) -> dict[str, Any]:
    """Return a block as the raw mapping of the file: ``source``, ``accuracy`` and ``layers``.

    Raises
    ------
    SpecError
        For an unknown block, with the nearest names.

    >>> block("vgg16-conv-head")["layers"][0]
    {'name': 'conv6', 'kind': 'convolution', 'num_channels': 512, 'kernel': 1}
    """
    return deepcopy(_blocks()[find_block(name)])
