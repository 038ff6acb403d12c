"""Limits of a purchase: what does not end with its time is broken off, and claims nothing."""

from datetime import date
from typing import Any

import pytest

from planner.errors import NoAnswerError
from planner.procurement.procure import procure
from planner.procurement.question import load_procurement
from planner.procurement.search import Fleets
from planner.search import Search

QUESTION: dict[str, Any] = {
    "dnn": {"zoo": "resnet50", "global_batch": 64, "dataset_samples": 1000, "epochs": 1},
    "procure": {"deadline": "1 d", "machines": {"at_most": 2}},
}


def test_a_price_list_whose_bounds_do_not_end_in_time_is_not_called_infeasible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Search, "bounded", lambda search, make, instead: instead)
    asked = load_procurement(QUESTION, today=date(2026, 1, 1))
    with pytest.raises(NoAnswerError):
        procure(asked, Search(time_limit_s=0.0), lambda problem: pytest.fail("nothing was found"))
    assert Fleets(procurement=asked).markets(1)
