"""What a block ``configuration.hybrid`` means by the keys that it leaves out: what ``plan`` takes by default.

One table of what programs have (:mod:`planner.models.transformer_programs`), which the search reads, too. A key is
taken as a pin asks; else it is on where the program has it, the rules of the search give it a meaning
(:mod:`planner.families.hybrid.rules`) and the question does not exclude it: an overlap never makes a step longer, and a
step of the optimiser that data ranks share is shorter. The degrees, the schedule, the micro-batch, recomputation and
where the optimiser runs are what is asked about: left out they are 1, 1F1B, none and the device, as ever.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from planner.families.hybrid.configuration import FLAGS, ORDER_NAMES, PINS, RECOMPUTE_NAMES, SCHEDULE_NAMES
from planner.families.hybrid.rules import LayoutRule, rules_of, unlike_rules
from planner.models.transformer_programs import PROGRAMS
from planner.problem import Problem

__all__ = ["completed", "left_out_words"]

_DECIDED = ("is_sequence_parallel", "overlaps_tensor", "overlaps_data", "zero")  # the second needs the first
_CODES = {"recompute": RECOMPUTE_NAMES, "schedule": SCHEDULE_NAMES, "order": ORDER_NAMES}
_ARRAYS = {key: name for name, key in FLAGS.items()}
_PINNED = {name: key for key, name in PINS.items()}


def completed(problem: Problem, given: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """Return a block with all its keys, of a question whose network is a transformer."""
    transformer = problem.dnn.transformer
    assert transformer is not None, "asked by why_not"
    found, rules = dict(given), (*rules_of(transformer, batch), *unlike_rules())
    has = PROGRAMS[problem.calibration.program].has
    for name in _DECIDED:
        key, pin = FLAGS.get(name, name), _PINNED[name]
        if found[key] is None:
            is_on = name in has and 1 not in problem.excluded.get(pin, ()) and _has_meaning(rules, found, name)
            code = int(problem.fixed.get(pin, is_on))
            found[key] = bool(code) if name in FLAGS else code
    return found


def _has_meaning(rules: tuple[LayoutRule, ...], block: Mapping[str, Any], name: str) -> bool:
    """Whether no rule that leads to a decision forbids that it is on beside those that are decided."""
    codes = {**{_ARRAYS.get(key, key): _code(key, one) for key, one in block.items()}, name: 1}
    columns = {key: np.array([one]) for key, one in codes.items() if one is not None}
    mine = [one for one in rules if one.key == FLAGS.get(name, name) and columns.keys() >= set(one.names)]
    return all(bool(one.holds(columns)[0]) for one in mine)


def _code(key: str, value: Any) -> int | None:
    """Return a decision as a number; None for what is none, or is left out."""
    if key in _CODES:
        return _CODES[key].index(value)
    return int(value) if isinstance(value, int) else None


def left_out_words(problem: Problem, given: Mapping[str, Any], block: Mapping[str, Any]) -> list[str]:
    """Return a line for each key that was left out and is on: ``overlap_data: on, as megatron-core has it``.

    ``block``: what the layout is.
    """
    keys = [FLAGS.get(name, name) for name in _DECIDED]
    return [
        f"{key}: {'on' if block[key] is True else block[key]}, as {problem.calibration.program} has it"
        for key in keys
        if given[key] is None and block[key]
    ]
