"""The answer to a case's question of what to buy or rent, as a tree of numbers.

The question is a spec with a block ``procure``, as :func:`planner.api.procure` takes it; price lists are named from the
case's folder. The fields of its answer:

- ``objective.value``, ``objective.bound``, ``objective.gap``;
- ``choice``: what :mod:`planner.procurement.document` says of the fleet, e.g. ``choice.cost_usd``,
  ``choice.wall_time_s``, ``choice.training_s.training``, ``choice.breakdown_usd.rent``;
- ``machines``: how many of each instance, 0 for every other one of the list; ``num_machines``, ``num_devices``;
- ``relative_margin``: by what share training may take longer until the deadline is missed.
"""

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from planner import api
from planner.procurement.answer import Procured
from planner.procurement.document import procurement_document
from planner.procurement.price_list import read_price_list

__all__ = ["procured_values"]

_BUILT_IN = "built-in"
_TIME_LIMIT_S = 300.0
# A case asks the same on whatever day it is run; the age of prices is told in a warning, which is no number.
_TODAY = date.max


def procured_values(question: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return the numbers of the answer to a question of a case in a folder."""
    block = dict(question["procure"])
    given = block.get("prices", _BUILT_IN)
    names = [given] if isinstance(given, str) else list(given)
    block["prices"] = [name if name == _BUILT_IN else str(folder / name) for name in names]
    asked = {**question, "procure": block}
    return _values_of(api.procure(asked, num_alternatives=0, time_limit_s=_TIME_LIMIT_S, today=_TODAY), block)


def _values_of(found: Procured, block: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer's numbers."""
    document, fleet = procurement_document(found), found.choice.fleet
    custom = [device["name"] for device in block.get("custom_devices") or ()]
    lists = [
        read_price_list(None if name == _BUILT_IN else Path(name), today=_TODAY, custom_devices=custom)
        for name in block["prices"]
    ]
    machines = {offer.instance: 0 for prices in lists for offer in prices.offers}
    for offer, count in zip(fleet.offers, fleet.counts, strict=True):
        machines[offer.instance] += count
    return {
        "objective": document["objective"],
        "choice": document["choice"],
        "machines": machines,
        "num_machines": fleet.num_machines,
        "num_devices": fleet.num_devices,
        "relative_margin": found.margin,
    }
