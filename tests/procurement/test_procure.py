"""The answer against a referee that tries every fleet."""

from typing import Any

import purchases
import pytest
from hypothesis import HealthCheck, assume, given, settings
from purchases_drawn import blocks, ideal, rows, times
from pytest import MonkeyPatch, TempPathFactory

from planner.errors import InfeasibleError
from planner.solution import Status

SLOW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@SLOW
@given(rows(), blocks(), times())
def test_no_fleet_of_all_that_there_are_beats_the_answer(
    tmp_path_factory: TempPathFactory,
    given_rows: list[dict[str, Any]],
    block: dict[str, Any],
    made: purchases.MadeUpTimes,
) -> None:
    with MonkeyPatch.context() as patch:
        purchases.stub(patch, made, ideal(made))
        path = tmp_path_factory.getbasetemp() / "list.csv"
        if "t4" in block.get("quotas", {}):
            assume(any(one["device"] == "t4" for one in given_rows))
        procurement = purchases.loaded(purchases.asked(path, given_rows, **block))
        bills = purchases.all_bills(procurement, made)
        if not bills:
            with pytest.raises(InfeasibleError):
                purchases.answered(procurement)
            return
        found = purchases.answered(procurement, has_pareto=True)
        best = min(bill.objective for bill in bills)
        assert found.certificate.objective == pytest.approx(best, rel=1e-8)
        assert found.certificate.status is Status.OPTIMAL
        assert found.certificate.bound <= best * (1 + 1e-9)
        assert found.pareto is not None and found.pareto.status is Status.OPTIMAL
        points = [(one.choice.total_wall_s, one.choice.cost_usd) for one in found.pareto.points]
        truth = purchases.pareto_of(bills)
        assert len(points) == len(truth)
        assert points == [pytest.approx(point, rel=1e-8) for point in truth]
