"""Prices of machines and of networks between them: the tables beside this file, as text.

:mod:`planner.procurement.price_list` reads them exactly as it reads a table of the user's; docs/prices.md says what
the columns mean and where the figures come from.
"""

from importlib import resources

__all__ = ["networks_text", "prices_text"]


def prices_text() -> str:
    """Return the list of prices that ships.

    >>> prices_text().splitlines()[0].split(",")[:4]
    ['provider', 'instance', 'region', 'term']
    """
    return resources.files("planner.data").joinpath("prices.csv").read_text(encoding="utf-8")


def networks_text() -> str:
    """Return the network tiers that ship.

    >>> networks_text().splitlines()[0].split(",")[0]
    'name'
    """
    return resources.files("planner.data").joinpath("networks.csv").read_text(encoding="utf-8")
