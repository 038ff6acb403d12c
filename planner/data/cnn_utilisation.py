"""Utilisation of devices that train convolutional networks in short numbers, from the file beside this one.

``cnn_utilisation.yaml`` is written by ``python -m planner.evaluation.cnn_fit --write``; ``docs/accuracy_cnn.md`` says
how good it is.
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from planner.yaml_text import plain_yaml

__all__ = ["cnn_utilisation"]


@cache
def cnn_utilisation() -> Mapping[str, Mapping[str, Any]]:
    """Return, by device: ``utilisation`` of its peak in short numbers, and what it rests on.

    ``error``: the largest error on submissions that the fit did not see, None where there is one submitter only;
    ``batch_per_device``: the least and the most samples on a device; ``num_runs``: how many it is fitted to.

    >>> 0 < cnn_utilisation()["h100-sxm"]["utilisation"] < 1
    True
    """
    text = resources.files("planner.data").joinpath("cnn_utilisation.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = plain_yaml(text)
    return MappingProxyType({name: MappingProxyType(row) for name, row in found["devices"].items()})
