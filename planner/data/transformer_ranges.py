"""Between which sizes transformers' steps were measured, from the file beside this one.

``transformer_ranges.yaml`` is written by ``python -m planner.evaluation.transformer_fit.ranges``.
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from planner.yaml_text import plain_yaml

__all__ = ["transformer_ranges"]


@cache
def transformer_ranges() -> Mapping[str, Mapping[str, Any]]:
    """Return by device: ``rows``, how many; ``sizes``, least and most of each by its name; ``software``, programs.

    And ``families``, the same by family of measurements.

    >>> transformer_ranges()["h100-sxm"]["sizes"]["experts"]
    [0, 0]
    """
    text = resources.files("planner.data").joinpath("transformer_ranges.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = plain_yaml(text)
    return MappingProxyType(found)
