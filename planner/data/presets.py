"""Published testbeds, in the form of a spec's ``cluster`` block."""

from copy import deepcopy
from functools import cache
from typing import Any

from planner.names import find, fold
from planner.shipped import shipped_text
from planner.yaml_text import blocks_of, plain_yaml

_PRESETS, _SUBSTITUTIONS = "presets.yaml", "substitutions.yaml"


@cache
def _texts(file: str) -> dict[str, str]:
    """Return the text of every block of a file by its name."""
    return blocks_of(shipped_text("planner.data", file))


@cache
def _block(file: str, name: str) -> dict[str, object]:
    """Return a block's content; callers get copies."""
    found: dict[str, Any] = plain_yaml(_texts(file)[name])[name]
    return found


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, in the file's order."""
    return tuple(_texts(_PRESETS))


def preset(name: str) -> dict[str, object]:
    """Return a testbed as the raw mapping of the file, its own copy: quantities are texts with units.

    Raises
    ------
    SpecError
        For an unknown preset, with the nearest names.

    >>> preset("osf-testbed")["machines"]
    [{'count': 4, 'device': 'rtx-2080-ti', 'devices': 8, 'inside': 'pcie-3-x16', 'network': '25 Gbps', 'nics': 1}]
    """
    return deepcopy(_block(_PRESETS, find(name, {fold(known): known for known in _texts(_PRESETS)}, "preset")))


# --- Prices of machines and of networks between them: the tables beside this file, as text
# :mod:`planner.procurement.prices` reads them exactly as it reads a table of the user's; docs/prices.md says what
# the columns mean and where the figures come from.


def prices_text() -> str:
    """Return the list of prices that ships.

    >>> prices_text().splitlines()[0].split(",")[:4]
    ['provider', 'instance', 'region', 'term']
    """
    return shipped_text("planner.data", "prices.csv")


def networks_text() -> str:
    """Return the network tiers that ship.

    >>> networks_text().splitlines()[0].split(",")[0]
    'name'
    """
    return shipped_text("planner.data", "networks.csv")


# --- Blocks of layers that may take the place of others, as ``substitutions.yaml`` describes them


def block_names() -> tuple[str, ...]:
    """Return the names of all blocks, in the file's order."""
    return tuple(_texts(_SUBSTITUTIONS))


def find_block(name: str) -> str:
    """Return the proper name of a block; raise SpecError, with the nearest one, if there is none."""
    return find(name, {fold(known): known for known in _texts(_SUBSTITUTIONS)}, "block")


def block(name: str) -> dict[str, Any]:
    """Return a block as the raw mapping of the file: ``source``, ``accuracy`` and ``layers``.

    Raises
    ------
    SpecError
        For an unknown block, with the nearest names.

    >>> block("vgg16-conv-head")["layers"][0]
    {'name': 'conv6', 'kind': 'convolution', 'num_channels': 512, 'kernel': 1}
    """
    return deepcopy(_block(_SUBSTITUTIONS, find_block(name)))
