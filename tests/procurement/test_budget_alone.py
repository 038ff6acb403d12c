"""A budget and nothing else asks for the fastest training that it pays for."""

from pathlib import Path
from typing import Any

import purchases
import pytest
from purchases import row

ROWS = [row("small", usd_per_h=0.5), row("large", device="v100-sxm2-16g", usd_per_h=3, network_gbit_per_s=100)]


@pytest.mark.parametrize(
    ("block", "objective"),
    [
        ({"budget": "500 USD"}, "time"),
        ({"budget": "500 USD", "objective": "cost"}, "cost"),
        ({"budget": "500 USD", "deadline": "9 h"}, "cost"),
        ({"deadline": "9 h"}, "cost"),
        ({"budget": "500 USD", "objective": "value_of_time", "usd_per_hour_saved": 5}, "value_of_time"),
    ],
)
def test_what_is_minimised_follows_from_what_is_given(tmp_path: Path, block: dict[str, Any], objective: str) -> None:
    found = purchases.loaded(purchases.asked(tmp_path / "list.csv", ROWS, **block))
    assert found.asked.objective == objective
    assert any("a budget alone" in words for words in found.assumptions) is (objective == "time")
