"""Several trainings that share the machines, against the rule as it is stated: simulated for every fleet."""

from collections.abc import Mapping
from math import floor
from pathlib import Path
from typing import Any

import purchases
import pytest
from answers import procured_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from purchases import DNN, MONTH_S, Machine, MadeUpTimes, row
from pytest import MonkeyPatch, TempPathFactory

from planner.errors import InfeasibleError, SpecError
from planner.procurement.answer import Procured
from planner.procurement.fleet import Fleet
from planner.procurement.oracle import Oracle
from planner.procurement.question import Procurement
from planner.search import Search
from planner.solution import Status

ROWS = [
    row("small", usd_per_h=1, billing_s=1, most=5),
    row("large", device="v100-sxm2-16g", usd_per_h=2.5, billing_s=1, most=4),
]


def job(name: str, runs: float, **changed: Any) -> dict[str, Any]:
    return {"name": name, "dnn": dict(DNN), "runs_per_month": runs, **changed}


def walls_s(procurement: Procurement, fleet: Fleet, times: Mapping[str, MadeUpTimes]) -> dict[str, float]:
    """Return how long a run of each job takes on its part of the machines."""
    found = {}
    for one in procurement.jobs:
        counts = tuple(floor(count * one.share + 1e-9) for count in fleet.counts)
        part = Fleet(offers=fleet.offers, counts=counts)
        found[one.name] = times[one.name](part) if any(counts) else float("inf")
    return found


def keeps_month(procurement: Procurement, fleet: Fleet, times: Mapping[str, MadeUpTimes]) -> bool:
    """Play the month: all jobs are asked for at once; those without a part to themselves run one after the other."""
    walls, jobs = walls_s(procurement, fleet, times), procurement.jobs
    busy = [one.runs_per_month * walls[one.name] for one in jobs]
    if all(one.share < 1 for one in jobs):
        return max(busy) <= MONTH_S and all(walls[one.name] <= one.deadline_s for one in jobs)
    clock_s = 0.0
    for one in sorted(jobs, key=lambda one: one.deadline_s):
        clock_s += walls[one.name]
        if clock_s > one.deadline_s:
            return False
    return sum(busy) <= MONTH_S


def cost_usd(procurement: Procurement, fleet: Fleet, times: Mapping[str, MadeUpTimes]) -> float:
    """Return the rent of a month: the machines are paid while some job runs."""
    walls, jobs = walls_s(procurement, fleet, times), procurement.jobs
    busy = [one.runs_per_month * walls[one.name] for one in jobs]
    busy_s = max(busy) if all(one.share < 1 for one in jobs) else sum(busy)
    return sum(count * offer.usd_per_h * busy_s / 3600 for offer, count in zip(fleet.offers, fleet.counts, strict=True))


@st.composite
def jobs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw one to three jobs: on all machines one after the other, or each on its share."""
    number = draw(st.integers(1, 3))
    shares: list[float] = draw(st.sampled_from([[1, 1, 1], [0.5, 0.3, 0.2], [0.5, 0.5 if number == 2 else 0.25, 0.25]]))
    found = []
    for index in range(number):
        one = job(f"j{index}", draw(st.sampled_from([1, 20, 300])), share=shares[index])
        if deadline := draw(st.sampled_from(["", "30 min", "70 min", "3 h"])):
            one["deadline"] = deadline
        found.append(one)
    return found


@pytest.mark.parametrize(("hours", "paid_h"), [(100, 100), (8760, 730), (26280, 730)])
def test_a_commitment_is_paid_month_by_month(
    tmp_path: Path, monkeypatch: MonkeyPatch, hours: float, paid_h: float
) -> None:
    machine = row("a", term="reserved", usd_per_h=2, committed_h=hours, upfront_usd=50, billing_s=1)
    made = MadeUpTimes({"t4": Machine(1)}, work=10 * 3600)
    purchases.stub(monkeypatch, made, lambda offer: 1 / made.work)
    question = purchases.asked(tmp_path / "l.csv", [machine], dnn=None, terms=["reserved"], jobs=[job("j", 4)])
    found = purchases.answered(purchases.loaded(question))
    assert (found.choice.fleet.counts, found.choice.cost_usd) == ((1,), 2 * paid_h)
    opening = procured_text(found).split("Where the time goes")[0]
    assert f"  commits        to {hours:,.0f} h of each a, used or not; a month of them counts here\n" in opening
    assert "  to pay         50.00 USD at once, for reservations, a part of their rent until they end\n" in opening


def test_what_another_fleet_takes_at_once_holds_what_its_reservations_take(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    terms = {"term": "reserved", "committed_h": 8760, "billing_s": 1}
    machines = [
        row("a", **terms, usd_per_h=2, upfront_usd=50),
        row("b", **terms, usd_per_h=3, upfront_usd=700, device="v100-sxm2-16g"),
    ]
    made = MadeUpTimes({"t4": Machine(1), "v100-sxm2-16g": Machine(1)}, work=10 * 3600)
    purchases.stub(monkeypatch, made, lambda offer: 1 / made.work)
    question = purchases.asked(tmp_path / "l.csv", machines, dnn=None, terms=["reserved"], jobs=[job("j", 4)])
    found = purchases.answered(purchases.loaded(question), search=Search(num_alternatives=1))
    (line,) = [one for one in procured_text(found).splitlines() if one.startswith("  next best")]
    assert line.startswith("  next best      1 x b (reserved)") and line.endswith("; 700.00 USD to pay at once")


def test_a_budget_pays_for_all_that_reservations_take_at_the_start(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """A month's part of 2,920 h is a quarter: 1,460 of 5,840 USD, and the first month pays 3,000 of 4,000 besides."""
    machine = row("a", term="reserved", usd_per_h=2, committed_h=2920, upfront_usd=4000, billing_s=1)
    made = MadeUpTimes({"t4": Machine(1)}, work=10 * 3600)
    purchases.stub(monkeypatch, made, lambda offer: 1 / made.work)

    def answered(budget: str) -> Procured:
        block = {"terms": ["reserved"], "jobs": [job("j", 4)], "budget": budget}
        return purchases.answered(purchases.loaded(purchases.asked(tmp_path / "l.csv", [machine], dnn=None, **block)))

    choice = answered("4460 USD").choice
    assert (choice.cost_usd, choice.spent_usd) == (1460, 4460)
    with pytest.raises(InfeasibleError, match=r"budget 4,460\.00 USD"):
        answered("4459 USD")


def test_a_reservation_that_takes_less_at_the_start_is_replaced_by_none_that_takes_more(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    terms = {"term": "reserved", "committed_h": 2920, "billing_s": 1}
    machines = [row("a", **terms, usd_per_h=2, upfront_usd=4000), row("b", **terms, usd_per_h=2.5, upfront_usd=20)]
    made = MadeUpTimes({"t4": Machine(1)}, work=10 * 3600)
    purchases.stub(monkeypatch, made, lambda offer: 1 / made.work)
    block = {"terms": ["reserved"], "jobs": [job("j", 4)], "budget": "2000 USD"}
    found = purchases.answered(purchases.loaded(purchases.asked(tmp_path / "l.csv", machines, dnn=None, **block)))
    assert (found.choice.fleet.offers[0].instance, found.choice.spent_usd) == ("b", 1840)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    jobs(),
    st.lists(st.sampled_from([900.0, 3600.0, 9000.0]), min_size=3, max_size=3),
    st.sampled_from([0.0, 200.0]),
    st.integers(1, 2),
)
def test_no_fleet_of_all_finishes_every_job_in_time_for_less(
    tmp_path_factory: TempPathFactory, given_jobs: list[dict[str, Any]], work: list[float], serial_s: float, most: int
) -> None:
    machines = {"t4": Machine(1.0), "v100-sxm2-16g": Machine(2.0, useful=3)}
    times = {
        f"j{index}": MadeUpTimes(machines=machines, work=work[index], serial_s=serial_s, loss=0.1) for index in range(3)
    }
    least = min(work)
    with MonkeyPatch.context() as patch:
        purchases.stub(patch, times, lambda offer: machines[offer.device].rate / least)
        path = tmp_path_factory.getbasetemp() / "jobs.csv"
        block: dict[str, Any] = {"jobs": given_jobs, "most_types": most, "objective": "cost"}
        procurement = purchases.loaded(purchases.asked(path, ROWS, dnn=None, **block))
        fleets = [one for one in purchases.every_fleet(procurement) if keeps_month(procurement, one, times)]
        # As ideal rates are those of the lightest job, heavier ones only have weaker floors.
        if not fleets:
            with pytest.raises(InfeasibleError):
                purchases.answered(procurement)
            return
        found = purchases.answered(procurement)
        best = min(cost_usd(procurement, one, times) for one in fleets)
        assert found.certificate.status is Status.OPTIMAL
        # billed by the second: of every machine at most one more
        assert found.choice.cost_usd == pytest.approx(best, rel=1e-6, abs=10 * 2.5 / 3600)


@pytest.mark.parametrize("share", [1, 0.5])
def test_the_smallest_fleet_that_finishes_all_is_bought(tmp_path: Path, share: float) -> None:
    rows = [row("own", term="bought", purchase_usd=9000, useful_life_years=3, most=12)]
    times = {name: MadeUpTimes(machines={"t4": Machine(1.0)}, work=36_000) for name in ("a", "b")}
    block: dict[str, Any] = {
        "terms": "bought",
        "jobs": [job("a", 10, deadline="10 h", share=share), job("b", 30, deadline="8 h", share=share)],
    }
    with MonkeyPatch.context() as patch:
        purchases.stub(patch, times, lambda offer: 1 / 36_000)
        found = purchases.answered(purchases.loaded(purchases.asked(tmp_path / "own.csv", rows, dnn=None, **block)))
    # 10 h of work each. After each other b ends at 10/n h and a at 20/n h. On halves a runs 20/n h: at least 3 machines
    # for a deadline of 8 h, and of 4 each job has two; of 3 one.
    assert found.choice.fleet.counts == ((2,) if share == 1 else (4,))
    assert found.choice.capital_usd == pytest.approx(9000 * found.choice.fleet.counts[0])
    assert found.choice.wall_s == pytest.approx({"a": 18_000, "b": 18_000})


def test_a_month_of_jobs_is_told_job_by_job(tmp_path: Path) -> None:
    question = purchases.asked(
        tmp_path / "two.csv", ROWS, dnn=None, jobs=[job("a", 4), job("b", 2, dnn={**DNN, "epochs": 5})]
    )
    import planner

    found = planner.procure(question, today=purchases.TODAY)
    assert set(found.choice.plans) == {"a", "b"}
    assert found.choice.training_s["b"] == pytest.approx(5 * found.choice.training_s["a"], rel=0.05)
    busy_s = 4 * found.choice.wall_s["a"] + 2 * found.choice.wall_s["b"]
    assert found.choice.total_wall_s == pytest.approx(busy_s)
    assert found.certificate.status is Status.OPTIMAL


@pytest.mark.parametrize(
    ("jobs_", "more", "words"),
    [
        ([job("a", 1), job("a", 2)], {}, "two jobs are called 'a'"),
        ([job("a", 1, share=0.7), job("b", 2, share=0.5)], {}, "take 120% of them"),
        ([job("a", 1)], {"deadline": "3 h"}, "each has a deadline of its own"),
        ([job("a", 1, dnn={"zoo": "alexnet", "epochs": 1})], {}, r"jobs\.0\.dnn\.global_batch: .* must be given"),
        ([job("a", 0)], {}, "runs_per_month"),
    ],
)
def test_jobs_that_contradict_are_refused(
    tmp_path: Path, jobs_: list[dict[str, Any]], more: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        purchases.loaded(purchases.asked(tmp_path / "list.csv", ROWS, dnn=None, jobs=jobs_, **more))


@pytest.mark.parametrize(("at_least", "is_late"), [(1, False), (3, True)])
def test_jobs_that_only_the_failures_of_many_machines_make_late_need_no_proof_of_their_own(
    tmp_path: Path, at_least: int, is_late: bool
) -> None:
    machines = {"t4": Machine(1.0), "v100-sxm2-16g": Machine(2.0, useful=3)}
    times = {"a": MadeUpTimes(machines=machines, work=1800, serial_s=5400)}
    block: dict[str, Any] = {
        "machines": {"at_least": at_least},
        "run": {"mean_time_between_failures": "6 h", "restart": "20 min"},
        "jobs": [job("a", 2, deadline="2.6 h")],
    }
    with MonkeyPatch.context() as patch:
        purchases.stub(patch, times, lambda offer: machines[offer.device].rate / 1800)
        procurement = purchases.loaded(purchases.asked(tmp_path / "list.csv", ROWS, dnn=None, **block))
        if is_late:
            with pytest.raises(InfeasibleError, match="deadlines of the jobs"):
                purchases.answered(procurement)
        else:
            assert purchases.answered(procurement).certificate.status is Status.OPTIMAL


@pytest.mark.parametrize("share", [1, 0.5])
def test_long_and_short_runs_have_failures_of_their_own(tmp_path: Path, share: float) -> None:
    rows = [row("small", usd_per_h=1, billing_s=1, least_billed_s=0, most=2)]
    times = {
        "long": MadeUpTimes(machines={"t4": Machine(1.0)}, work=90_000),
        "short": MadeUpTimes(machines={"t4": Machine(1.0)}, work=600),
    }
    block: dict[str, Any] = {
        "machines": {"exactly": 2},
        "run": {"mean_time_between_failures": "60 h", "start_up": "5 min"},
        "jobs": [job("long", 2, share=share), job("short", 60, share=share)],
    }
    with MonkeyPatch.context() as patch:
        purchases.stub(patch, times, lambda offer: 1 / 600)
        found = purchases.answered(purchases.loaded(purchases.asked(tmp_path / "two.csv", rows, dnn=None, **block)))
    machines = 2 * share
    run = purchases.loaded(purchases.asked(tmp_path / "two.csv", rows, dnn=None, **block)).asked.run
    walls = {
        name: purchases.wall_time_s(work / machines, machines / 60, run)
        for name, work in (("long", 90_000), ("short", 600))
    }
    assert found.choice.wall_s == pytest.approx(walls)
    busy = [2 * walls["long"], 60 * walls["short"]]
    assert found.choice.total_wall_s == pytest.approx(sum(busy) if share == 1 else max(busy))
    assert found.choice.cost_usd == pytest.approx(found.choice.total_wall_s * 2 / 3600, rel=1e-4)


def test_few_fleets_are_planned_for_several_jobs(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """Whether a fleet keeps the deadlines of all jobs is asked of fleets whose turn it is alone: it takes plans."""
    machines = {"t4": Machine(1.0), "v100-sxm2-16g": Machine(2.7)}
    times = {
        name: MadeUpTimes(machines=machines, work=50_000, serial_s=serial_s)
        for name, serial_s in (("a", 900), ("b", 9000))
    }
    purchases.stub(monkeypatch, times, lambda offer: machines[offer.device].rate / 50_000)
    rows = [row("small", usd_per_h=1), row("large", device="v100-sxm2-16g", usd_per_h=2.5)]
    question = purchases.asked(tmp_path / "list.csv", rows, dnn=None, jobs=[job("a", 4), job("b", 2)], most_devices=512)
    found = purchases.answered(purchases.loaded(question))
    assert found.certificate.status is Status.OPTIMAL
    assert found.certificate.num_planned < 20


def test_jobs_that_are_late_on_any_number_of_machines_are_told_without_dividing_by_what_is_infinite(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    times = {
        name: MadeUpTimes(machines={"t4": Machine(1.0, useful=useful)}, work=60_000)
        for name, useful in (("a", 2), ("b", 1))
    }
    purchases.stub(monkeypatch, times, lambda offer: 1 / 600)
    rows = [row("own", term="bought", purchase_usd=4000, useful_life_years=3, most=4)]
    jobs_ = [job("a", 2, deadline="8.5 h"), job("b", 1, deadline="17 h")]  # b takes 16.7 h, behind a's 8.3 h
    question = purchases.asked(tmp_path / "list.csv", rows, dnn=None, jobs=jobs_, terms=["bought"])
    with pytest.raises(InfeasibleError, match="deadlines of the jobs"):
        purchases.answered(purchases.loaded(question))


def test_beside_a_job_that_has_no_room_no_time_is_left_for_others(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """Not without deadlines either, where any time would do: that difference is no number."""
    machines = {"t4": Machine(1.0), "v100-sxm2-16g": Machine(2.0, room=4.0)}
    times = {name: MadeUpTimes(machines=machines, work=6000, need=need) for name, need in (("large", 4), ("small", 0))}
    purchases.stub(monkeypatch, times, lambda offer: 1 / 600)
    rows = [row("small", usd_per_h=1, most=2), row("large", device="v100-sxm2-16g", usd_per_h=20, most=1)]
    question = purchases.asked(tmp_path / "list.csv", rows, dnn=None, jobs=[job("large", 1), job("small", 2)])
    found = purchases.answered(purchases.loaded(question))
    assert found.choice.fleet.headline == "1 x large"
    assert found.certificate.status is Status.OPTIMAL


def test_what_a_job_lacks_is_told_with_its_name_and_place(tmp_path: Path) -> None:
    """A question of several jobs has no block dnn; and no number of images is offered to a network that reads tokens."""
    words = {"zoo": "bert-base", "global_batch": 256, "epochs": 3}
    given_jobs = [job("eyes", 3), {"name": "words", "dnn": words, "runs_per_month": 1}]
    procurement = purchases.loaded(purchases.asked(tmp_path / "jobs.csv", ROWS, dnn=None, jobs=given_jobs))
    with pytest.raises(SpecError, match=r"procure\.jobs\.1\.dnn: of the job 'words', .*tokens: 300B") as refused:
        Oracle(procurement, procurement.jobs[1]).problem(Fleet(offers=procurement.offers[:1], counts=(1,)))
    assert "1281167" not in str(refused.value)


def test_several_jobs_are_proven_with_few_plans_of_many_kinds(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """Kinds with low floors are slow in truth; the best one stands behind them."""
    devices = ["t4", "l4", "a10g", "l40s", "v100-sxm2-16g"]
    machines = {device: Machine(1.0 + index) for index, device in enumerate(devices)}
    best = "v100-sxm2-16g"
    times = {name: MadeUpTimes(machines=machines, work=work) for name, work in (("a", 50_000), ("b", 200_000))}

    def seconds(name: str) -> Any:
        return lambda fleet: times[name](fleet) * (1 if fleet.offers[0].device == best else 5 + fleet.counts[0] ** 0.9)

    purchases.stub(
        monkeypatch,
        {name: seconds(name) for name in times},
        lambda offer: machines[offer.device].rate / (50_000 * (1.0 if offer.device == best else 0.8)),
    )
    rows = [row(f"m{index}", device=device, usd_per_h=1 + index) for index, device in enumerate(devices)]
    jobs_ = [job("a", 4, deadline="30 h"), job("b", 2, deadline="60 h")]
    question = purchases.asked(tmp_path / "list.csv", rows, dnn=None, jobs=jobs_, most_devices=512)
    found = purchases.answered(purchases.loaded(question))
    assert found.certificate.status is Status.OPTIMAL
    assert found.choice.fleet.offers[0].device == best
    assert found.certificate.num_planned < 30
