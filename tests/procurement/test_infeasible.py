"""What is said where no fleet keeps the limits: every way out works, and a little less does not."""

import re
from pathlib import Path
from typing import Any

import purchases
import pytest
from purchases import Machine, MadeUpTimes, row

import planner
from planner.answer.documents import error_document
from planner.errors import InfeasibleError, NoAnswerError
from planner.procurement.no_fleet import not_found
from planner.procurement.procure import procure
from planner.procurement.search import Fleets
from planner.search import Search
from planner.units import Dimension, parse

ROWS = [
    row("small", usd_per_h=1, power_w=300),
    row("large", device="v100-sxm2-16g", usd_per_h=3.3, power_w=700),
    row("own", device="a10g", term="bought", purchase_usd=7000, useful_life_years=3, power_w=350),
]
MACHINES = {"t4": Machine(1.0), "v100-sxm2-16g": Machine(2.7, useful=6), "a10g": Machine(1.9)}
TIMES = MadeUpTimes(machines=MACHINES, work=50_000, serial_s=1234, loss=0.1)
WAY = re.compile(r"^  (budget|deadline|power|capital) ([\d.,]+ \w+)(.*)\(")


def ways_of(tmp_path: Path, **block: Any) -> tuple[list[tuple[str, str, list[str]]], str]:
    """Return each way out: the limit, its least value, and limits that fall."""
    procurement = purchases.loaded(purchases.asked(tmp_path / "list.csv", ROWS, **block))
    with pytest.raises(InfeasibleError) as caught:
        purchases.answered(procurement)
    found = []
    for line in str(caught.value).splitlines():
        if match := WAY.match(line):
            fallen = re.findall(r"and no limit on (\w+)", match[3])
            found.append((match[1], match[2].replace(",", ""), fallen))
    return found, str(caught.value)


@pytest.mark.parametrize(
    ("block", "limits"),
    [
        ({"budget": "9 USD"}, {"budget"}),
        ({"deadline": "20 min"}, {"deadline"}),
        ({"deadline": "1.5 h", "budget": "16 USD", "instances": ["small"]}, {"deadline", "budget"}),
        ({"deadline": "4 h", "power": "0.7 kW"}, {"deadline", "power"}),
        ({"deadline": "10 s", "budget": "1 USD"}, {"deadline", "budget"}),
        ({"terms": ["bought"], "capital": "8000 USD", "deadline": "4 h", "power": "2 kW"}, {"deadline", "capital"}),
        ({"most_types": 2, "most_devices": 64, "deadline": "3 h", "budget": "15 USD"}, {"deadline", "budget"}),
    ],
)
def test_every_way_out_works_and_a_little_less_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: dict[str, Any], limits: set[str]
) -> None:
    purchases.stub(monkeypatch, TIMES, lambda offer: MACHINES[offer.device].rate / TIMES.work)
    ways, message = ways_of(tmp_path, **block)
    assert {name for name, _, _ in ways} == limits, message
    for name, value, fallen in ways:
        mended = {key: given for key, given in block.items() if key not in fallen}
        number, unit = value.split()
        purchases.answered(purchases.loaded(purchases.asked(tmp_path / "l.csv", ROWS, **{**mended, name: value})))
        less = f"{float(number) * 0.98:.6f} {unit}"
        with pytest.raises(InfeasibleError):
            purchases.answered(purchases.loaded(purchases.asked(tmp_path / "l.csv", ROWS, **{**mended, name: less})))


@pytest.mark.parametrize(
    ("block", "fields", "is_minimal"),
    [
        ({"budget": "9 USD"}, {"procure.budget"}, True),
        ({"deadline": "4 h", "power": "0.7 kW"}, {"procure.deadline", "procure.power"}, True),
        ({"deadline": "4 h", "power": "0.7 kW", "budget": "999 USD"}, {"procure.deadline", "procure.power"}, False),
    ],
)
def test_the_document_of_the_error_holds_every_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: dict[str, Any], fields: set[str], is_minimal: bool
) -> None:
    purchases.stub(monkeypatch, TIMES, lambda offer: MACHINES[offer.device].rate / TIMES.work)
    with pytest.raises(InfeasibleError) as caught:
        purchases.answered(purchases.loaded(purchases.asked(tmp_path / "list.csv", ROWS, **block)))
    document = error_document(caught.value, kind="infeasible")
    assert document["conflict"]["is_minimal"] is is_minimal
    rows = {row_["field"]: row_ for row_ in document["relaxations"]}
    assert set(rows) == set(document["conflict"]["members"]) == fields
    for name, found in rows.items():
        key = name.removeprefix("procure.")
        dimension = {"budget": Dimension.MONEY, "deadline": Dimension.TIME, "power": Dimension.POWER}[key]
        given, (needed,) = parse(block[key], dimension), found["values"]
        assert parse(found["given"].replace(",", ""), dimension) == pytest.approx(given)
        assert found["is_exact"]
        assert found["is_enough"]
        assert found["change"] == pytest.approx(parse(needed.replace(",", ""), dimension) / given - 1, abs=0.01)
        mended = {**block, key: needed.replace(",", "")}
        purchases.answered(purchases.loaded(purchases.asked(tmp_path / "l.csv", ROWS, **mended)))


def test_where_no_limit_alone_is_enough_the_document_says_what_has_to_fall_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    purchases.stub(monkeypatch, TIMES, lambda offer: MACHINES[offer.device].rate / TIMES.work)
    block: dict[str, Any] = {"deadline": "10 s", "budget": "1 USD"}
    with pytest.raises(InfeasibleError) as caught:
        purchases.answered(purchases.loaded(purchases.asked(tmp_path / "list.csv", ROWS, **block)))
    (conflict,) = caught.value.conflicts
    assert not conflict.is_minimal
    notes = {one.field: one.note for one in conflict.relaxations if not one.is_enough}
    assert "no limit on budget" in notes["procure.deadline"]
    assert "no limit on deadline" in notes["procure.budget"]


def test_without_a_limit_to_give_the_message_says_what_is_in_the_way(tmp_path: Path) -> None:
    rows = [row("small", most=2), row("large", device="v100-sxm2-16g", most=3)]
    question = purchases.asked(tmp_path / "few.csv", rows, machines={"at_least": 5})
    with pytest.raises(InfeasibleError, match=r"number of machines.*what can be had of each"):
        planner.procure(question, today=purchases.TODAY)


def test_late_jobs_are_told_by_what_factor_their_deadlines_are_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    purchases.stub(monkeypatch, TIMES, lambda offer: MACHINES[offer.device].rate / TIMES.work)
    job = {"name": "a", "dnn": dict(purchases.DNN), "runs_per_month": 3}
    rows = [row("small", most=3)]  # 3 train for 50,000 / 3 + 1,234 s = 17,900 s

    def asked(deadline_s: float) -> Any:
        jobs = [{**job, "deadline": f"{deadline_s} s"}]
        return purchases.loaded(purchases.asked(tmp_path / "one.csv", rows, dnn=None, jobs=jobs))

    with pytest.raises(InfeasibleError, match=r"deadlines of the jobs .* times as late \(3 x small\)") as caught:
        purchases.answered(asked(9000))
    factor = float(str(caught.value).split("of the jobs ")[-1].split()[0])
    assert factor == pytest.approx(17_901 / 9000, rel=0.02)
    assert purchases.answered(asked(9000 * factor)).choice.fleet.counts == (3,)


def test_a_limit_before_the_first_fleet_leaves_what_is_proven_and_the_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    purchases.stub(monkeypatch, TIMES, lambda offer: MACHINES[offer.device].rate / TIMES.work)
    block: dict[str, Any] = {"deadline": "4 h", "power": "0.7 kW", "most_types": 2}
    fleets = Fleets(procurement=purchases.loaded(purchases.asked(tmp_path / "list.csv", ROWS, **block)))
    message = str(not_found(fleets, {1: float("inf"), 2: 3.25}, Search()))
    assert "a limit came before the first fleet was found; nothing beats 3.25 USD. Raise --time-limit." in message
    assert "Proven: no fleet of 1 type of machines keeps the limits (deadline 4 h, power 700 W)" in message
    assert re.search(r"\n  deadline [\d.]+ h \(", message)
    assert re.search(r"\n  power [\d.]+ \w+ \(", message)


def test_a_search_that_is_over_at_once_says_so_and_claims_nothing(tmp_path: Path) -> None:
    procurement = purchases.loaded(purchases.asked(tmp_path / "list.csv", ROWS[:2]))
    search = Search()
    search.interrupt()
    with pytest.raises(NoAnswerError, match=r"^the search was interrupted before .* Let it run") as caught:
        procure(procurement, search, lambda problem, before: pytest.fail("nothing is to be planned"))
    assert "Proven" not in str(caught.value)
