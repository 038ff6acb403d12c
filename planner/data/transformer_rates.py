"""Fitted figures of the transformers' cost model, from the file beside this one.

``transformer_rates.yaml`` is written by ``python -m planner.evaluation.transformer_fit --write``. Its names are fields
of classes of :mod:`planner.models.roofline` and :mod:`planner.models.transformer_compute`.
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from planner.yaml_text import plain_yaml

__all__ = ["TYPICAL_DEVICE", "transformer_rates"]

TYPICAL_DEVICE = "a100-sxm4-80gb"  # whose shares stand in for those of a device that was not fitted: uncalibrated


@cache
def transformer_rates() -> Mapping[str, Mapping[str, Any]]:
    """Return the sections ``constants``, ``devices``, ``software``, ``bands``, ``device_bands``; all but one by name.

    ``constants`` and an entry of ``software`` hold the fields of the classes of these names (but the name); an entry of
    ``devices`` the number of multiprocessors and the three fitted shares; an entry of ``bands`` the 80 % band of
    measured / predicted - 1 of a family of measurements, and how much of unseen groups others' bands cover; one of
    ``device_bands`` the same of all families of a device.

    >>> transformer_rates()["devices"][TYPICAL_DEVICE]["num_multiprocessors"]
    108
    """
    text = resources.files("planner.data").joinpath("transformer_rates.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = plain_yaml(text)
    sections = ("constants", "devices", "software", "bands", "device_bands")
    return MappingProxyType({name: MappingProxyType(found.get(name, {})) for name in sections})
