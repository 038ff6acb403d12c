"""Published testbeds, in the form of a spec's ``cluster`` block."""

from copy import deepcopy
from functools import cache
from importlib import resources

from planner.names import find, fold
from planner.yaml_text import plain_yaml

__all__ = ["preset", "preset_names"]


@cache
def _presets() -> dict[str, dict[str, object]]:
    """Return the file's content; callers get copies."""
    text = resources.files("planner.data").joinpath("presets.yaml").read_text(encoding="utf-8")
    presets: dict[str, dict[str, object]] = plain_yaml(text)
    return presets


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, in the file's order."""
    return tuple(_presets())


def preset(name: str) -> dict[str, object]:
    """Return a testbed as the raw mapping of the file, its own copy: quantities are texts with units.

    Raises
    ------
    SpecError
        For an unknown preset, with the nearest names.

    >>> preset("osf-testbed")["machines"]
    [{'count': 4, 'device': 'rtx-2080-ti', 'devices': 8, 'inside': 'pcie-3-x16', 'network': '25 Gbps', 'nics': 1}]
    """
    return deepcopy(_presets()[find(name, {fold(known): known for known in _presets()}, "preset")])
