"""What the search proves: with the planner itself, with answers that are not proven, and when it is stopped."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import purchases
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from purchases import DNN, Machine, MadeUpTimes, row
from purchases_drawn import blocks, ideal, rows, times
from pytest import CaptureFixture, MonkeyPatch, TempPathFactory

import planner
from planner.cli.run import run
from planner.errors import InfeasibleError
from planner.procurement.fleet import Fleet
from planner.procurement.oracle import Oracle, Trained
from planner.procurement.search import Fleets
from planner.ranking import best_plan
from planner.search import Search
from planner.solution import Status

ROWS = [
    row("small", usd_per_h=0.5, power_w=120),
    row("large", device="v100-sxm2-16g", usd_per_h=3, network_gbit_per_s=100, power_w=400),
    row("pair", device="a10g", devices=2, inside="pcie-4-x16", usd_per_h=2.2, billing_s=3600, power_w=500),
    row("lone", device="l40s", usd_per_h=1.8, network_gbit_per_s="", power_w=450),
]
UNLIKE_LINKS = [
    row("pcie", device="l40s", devices=4, inside="pcie-4-x16", usd_per_h=4, network_gbit_per_s=400, power_w=1500),
    row(
        "nvlink",
        device="a100-sxm4-40gb",
        devices=2,
        inside="nvlink-3",
        usd_per_h=4,
        network_gbit_per_s=100,
        power_w=900,
    ),
    row("narrow", device="a10g", usd_per_h=0.6, network_gbit_per_s=25, power_w=200),  # by TCP, alone
]
TRAINING = {**DNN, "epochs": 30, "dataset_samples": 1_281_167}
SIZE = {"layers": 12, "hidden": 4096, "heads": 32, "vocabulary": 32000, "sequence_length": 2048}
TRANSFORMER = {"transformer": SIZE, "global_batch": 48, "dataset_samples": 6_000_000, "epochs": 1}


def trained_by_the_planner(dnn: dict[str, Any], family: str) -> Any:
    """Return what the planner says of a fleet, with a question written by hand."""

    def seconds(fleet: Fleet) -> float:
        machines = []
        for offer, count in zip(fleet.offers, fleet.counts, strict=True):
            machine: dict[str, Any] = {"name": offer.instance, "count": count, "device": offer.device}
            machine["devices"] = offer.devices_per_machine
            machine["nics"] = 1  # the rate of an offer is that of the machine
            if offer.devices_per_machine > 1:
                machine["inside"] = offer.inside
            if offer.network_bytes_per_s is not None:
                machine |= {"network": f"{offer.network_bytes_per_s * 8 / 1e9} Gbit/s", "latency": "20 us"}
            machines.append(machine)
        question = {
            "dnn": dnn,
            "cluster": {"name": "fleet", "machines": machines},
            "objective": "training_time",
            "families": [family],
        }
        return objective_of(json.dumps(question))

    return seconds


@cache
def objective_of(question: str) -> float:
    """Return what the planner says of a question, which several tests ask."""
    return best_plan(planner.load(json.loads(question)), Search()).objective


@pytest.mark.parametrize(
    ("given_rows", "block"),
    [
        (ROWS, {"deadline": "6 h"}),
        (ROWS, {"objective": "time", "budget": "14 USD"}),
        (ROWS, {"objective": "energy", "deadline": "9 h", "most_types": 2}),
        (ROWS, {"deadline": "3 h", "most_types": 3, "quotas": {"large": 2}}),
        (UNLIKE_LINKS, {"objective": "time", "most_types": 3}),
        (UNLIKE_LINKS, {"deadline": "3 h", "most_types": 3, "quotas": {"*": 1}}),
    ],
)
def test_no_fleet_that_the_planner_plans_beats_the_answer(
    tmp_path: Path, given_rows: list[dict[str, Any]], block: dict[str, Any]
) -> None:
    question = purchases.asked(tmp_path / "list.csv", given_rows, dnn=TRAINING, machines={"at_most": 3}, **block)
    procurement = purchases.loaded(question)
    bills = purchases.all_bills(procurement, trained_by_the_planner(TRAINING, "all_reduce"))
    if not bills:
        with pytest.raises(InfeasibleError):
            planner.procure(question, today=purchases.TODAY)
        return
    found = planner.procure(question, today=purchases.TODAY, has_pareto=True)
    best = min(bill.objective for bill in bills)
    assert found.certificate.status is Status.OPTIMAL
    assert found.choice.objective == pytest.approx(best, rel=1e-6)
    assert found.pareto is not None and found.pareto.status is Status.OPTIMAL
    points = [(one.choice.total_wall_s, one.choice.cost_usd) for one in found.pareto.points]
    assert points == [pytest.approx(point, rel=1e-6) for point in purchases.pareto_of(bills)]


@pytest.mark.parametrize(("deadline", "is_mixed"), [("4 d", False), ("1.7 d", True)])
def test_no_mix_of_machines_for_a_transformer_is_cheaper_than_the_answer(
    tmp_path: Path, deadline: str, is_mixed: bool
) -> None:
    machine = {"network_gbit_per_s": 400, "devices": 2, "most": 1}
    given_rows = [
        row("old", device="a100-sxm4-80gb", inside="nvlink-3", usd_per_h=7, **machine),
        row("new", device="h100-sxm", inside="nvlink-4", usd_per_h=15, **machine),
    ]
    question = purchases.asked(tmp_path / "list.csv", given_rows, dnn=TRANSFORMER, deadline=deadline, most_types=2)
    question["families"] = ["hybrid"]
    procurement = purchases.loaded(question)
    bills = purchases.all_bills(procurement, trained_by_the_planner(TRANSFORMER, "hybrid"))
    found = planner.procure(question, today=purchases.TODAY)
    best = min(bill.objective for bill in bills)
    assert found.certificate.status is Status.OPTIMAL
    assert found.choice.objective == pytest.approx(best, rel=1e-6)
    assert (len(found.choice.fleet.offers) > 1) is is_mixed
    assert any("mixing kinds of machines" in line for line in found.explanation) is not is_mixed


@pytest.mark.parametrize(("other", "budget"), [("h100-sxm", 660), ("a100-sxm4-80gb", 1200)])
def test_no_fleet_of_two_offers_that_keeps_a_budget_is_faster_than_their_floor(
    tmp_path: Path, other: str, budget: float
) -> None:
    machine = {"devices": 2, "most": 1, "inside": "nvlink-3"}
    given_rows = [
        row("one", device="a100-sxm4-80gb", usd_per_h=7, network_gbit_per_s=200, **machine),
        row("two", device=other, usd_per_h=9, network_gbit_per_s=400, **machine),
    ]
    block = {"objective": "time", "budget": f"{budget} USD", "most_types": 2}
    question = purchases.asked(tmp_path / "list.csv", given_rows, dnn=TRANSFORMER, **block)
    procurement = purchases.loaded({**question, "families": ["hybrid"]})
    bills = purchases.all_bills(procurement, trained_by_the_planner(TRANSFORMER, "hybrid"))
    best_s = min(bill.time_s for bill in bills if len(bill.fleet) > 1)
    fleets = Fleets(procurement=procurement)
    (found_s,) = fleets._beside(fleets.markets(2), np.zeros(1), "time", {"spent": budget}, 2 * best_s, Search())
    assert 0.85 * best_s < found_s <= best_s * (1 + 1e-9)  # shares that are asked about lie 4 % of the time apart there


@pytest.mark.parametrize("family", ["all_reduce", "hybrid"])
def test_machines_that_a_run_outlasts_wear_no_more_of_a_budget_than_they_were_bought_for(
    tmp_path: Path, family: str
) -> None:
    """Else two machines, which keep the budget, were proven to cost too much, though one lasts for longer yet."""
    own = {"term": "bought", "useful_life_years": 0.2, "most": 1, "network_gbit_per_s": 100}
    rows = [row("a", device="a10g", purchase_usd=4000, **own), row("b", device="l4", purchase_usd=3000, **own)]
    size = {"layers": 4, "hidden": 1024, "heads": 8, "vocabulary": 32000, "sequence_length": 1024}
    dnn: dict[str, Any] = {"zoo": "resnet50", "global_batch": 64, "epochs": 2000}
    if family == "hybrid":
        dnn = {"transformer": size, "global_batch": 16, "dtype": "fp16", "tokens": "2T"}
    block: dict[str, Any] = {"terms": ["bought"], "objective": "time", "budget": "7100 USD", "most_types": 2}
    question = purchases.asked(tmp_path / "l.csv", rows, dnn=dnn, **block, utilisation=0.5)
    found = planner.procure(question | {"families": [family]}, today=purchases.TODAY)
    assert found.choice.cost_usd > found.choice.spent_usd
    assert (found.choice.fleet.counts, found.certificate.status) == ((1, 1), Status.OPTIMAL)


def test_two_offers_that_cost_no_less_than_what_matters_are_proven_not_to_without_a_plan(tmp_path: Path) -> None:
    """As when a limit of time strikes before the first: a proof up to rounding was none."""
    machine = {"devices": 2, "inside": "pcie-3-x16"}
    given_rows = [
        row("old", device="a100-sxm4-80gb", usd_per_h=4, **machine),
        row("new", device="h100-sxm", usd_per_h=5, **machine),
    ]
    dnn = {"zoo": "llama3.2-1b", "global_batch": 8, "dataset_samples": 32, "epochs": 1}
    question = purchases.asked(tmp_path / "list.csv", given_rows, dnn=dnn, most_types=2, machines={"at_most": 3})
    fleets = Fleets(procurement=purchases.loaded({**question, "families": ["hybrid"]}))
    usd = 4 / 3600 * 5 * (1 - 1e-9)  # four whole seconds of a new machine
    (floor_usd,) = fleets.floor(["cost"], np.array([[0, 1]]), np.ones((1, 2), int), np.full((1, 2), 2))[0]
    assert floor_usd < usd
    assert fleets.best(fleets.markets(2), Search(), most=usd, most_calls=0).solution.status is Status.INFEASIBLE


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows(), blocks(), times(), st.sampled_from([0.02, 0.3]), st.sampled_from([3, 10, 1000]))
def test_bounds_hold_where_plans_are_not_proven_and_where_the_search_is_stopped(
    tmp_path_factory: TempPathFactory,
    given_rows: list[dict[str, Any]],
    block: dict[str, Any],
    made: MadeUpTimes,
    slack: float,
    calls: int,
) -> None:
    block = {key: value for key, value in block.items() if key != "quotas"}
    path = tmp_path_factory.getbasetemp() / "slack.csv"
    procurement = purchases.loaded(purchases.asked(path, given_rows, **block))
    # What is proven of a plan is `slack` below its time, and the truth may lie anywhere between the two.
    truth = min((bill.objective for bill in purchases.all_bills(procurement, made, 1 - slack)), default=float("inf"))
    with MonkeyPatch.context() as patch:
        purchases.stub(patch, made, lambda offer: ideal(made)(offer) / (1 - slack), slack)
        fleets = Fleets(procurement=procurement)
        for number in range(1, procurement.asked.most_types + 1):
            if markets := fleets.markets(number):
                found = fleets.best(markets, Search(), most_calls=calls).solution
                # Less the sets of offers of which one may stand for the other: those are no markets.
                looked_at = {frozenset(offer.name for offer in market.offers) for market in markets}
                ours = [
                    bill.objective
                    for bill in purchases.all_bills(procurement, made, 1 - slack)
                    if frozenset(name for name, _ in bill.fleet) in looked_at
                ]
                assert found.bound <= min(ours, default=float("inf")) * (1 + 1e-9)
                if found.value is not None:
                    assert found.objective >= truth * (1 - 1e-9)
                    assert found.bound <= found.objective


def test_two_runs_give_the_same_document_byte_for_byte(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    question = purchases.asked(tmp_path / "list.csv", ROWS, dnn=TRAINING, deadline="6 h", most_types=2, machines=3)
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(question))
    found = []
    for _ in range(2):
        assert run(["procure", str(spec), "--json", "--pareto"]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1]
    assert json.loads(found[0])["schema"] == "planner.procurement/1"


def stopped(monkeypatch: MonkeyPatch, after: int) -> Search:
    """Let the planner be interrupted, as by Ctrl-C, once it has planned so many fleets."""
    search = Search()
    plain = Oracle._planned

    def planned(self: Oracle, fleet: Fleet, part: Search, enough_s: float) -> Trained:
        found = plain(self, fleet, part, enough_s)
        if self.num_planned >= after:
            search.interrupt()
        return found

    monkeypatch.setattr(Oracle, "_planned", planned)
    return search


def test_an_interruption_leaves_the_best_so_far_with_a_bound_that_holds(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    made = MadeUpTimes(machines={"t4": Machine(1.0), "v100-sxm2-16g": Machine(2.7)}, work=50_000, serial_s=1234)
    given_rows = [row("small", usd_per_h=1), row("large", device="v100-sxm2-16g", usd_per_h=2.9)]
    block: dict[str, Any] = {"objective": "value_of_time", "usd_per_hour_saved": 5, "most_devices": 24, "most_types": 2}
    procurement = purchases.loaded(purchases.asked(tmp_path / "list.csv", given_rows, **block))
    purchases.stub(monkeypatch, made, lambda offer: made.machines[offer.device].rate / made.work)
    best = purchases.answered(procurement).certificate
    assert best.status is Status.OPTIMAL
    statuses = []
    for after in (1, 2, 3, 5):
        with MonkeyPatch.context() as patch:
            found = purchases.answered(procurement, search=stopped(patch, after)).certificate
        statuses.append(found.status)
        assert found.bound <= best.objective * (1 + 1e-9) <= found.objective * (1 + 2e-9)
    assert Status.FEASIBLE in statuses


def test_an_interruption_through_the_public_function_keeps_the_fleet_that_was_found(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    question = purchases.asked(
        tmp_path / "list.csv", [row("small"), row("large", device="v100-sxm2-16g")], objective="time"
    )
    plain = Oracle._planned

    def planned(self: Oracle, fleet: Fleet, part: Search, enough_s: float) -> Trained:
        found = plain(self, fleet, part, enough_s)
        part.interrupt()  # as Ctrl-C does: of a part, of the whole
        return found

    monkeypatch.setattr(Oracle, "_planned", planned)
    found = planner.procure(question, today=purchases.TODAY)
    assert found.choice.plans["training"].objective == pytest.approx(found.choice.training_s["training"])
    assert found.certificate.bound <= found.certificate.objective


def test_more_machines_of_equal_hardware_on_other_terms_are_a_fleet_where_neither_is_better(tmp_path: Path) -> None:
    spot = row("m", term="spot", usd_per_h=0.3, interruptions_per_h=0.2)
    fleets = [
        purchases.loaded(purchases.asked(tmp_path / "list.csv", given_rows, terms=["on-demand", "spot"], most_types=2))
        for given_rows in (
            [row("m"), spot],
            [row("m"), {**spot, "usd_per_h": 2}],
            [row("m", most=3), {**spot, "usd_per_h": 2}],
        )
    ]
    with MonkeyPatch.context() as patch:
        made = MadeUpTimes(machines={"t4": Machine(1.0)})
        purchases.stub(patch, made, ideal(made))
        numbers = [len(Fleets(procurement=one).markets(2)) for one in fleets]
    assert numbers == [1, 0, 1]  # dearer and interrupted is worth a thought only where the better one is scarce


def test_a_limit_before_any_fleet_ends_the_command_with_its_own_code(
    tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(purchases.asked(tmp_path / "list.csv", ROWS, dnn=TRAINING)))
    assert run(["procure", str(spec), "--time-limit", "1 us"]) == 3
    told = capsys.readouterr()
    assert "nothing beats" in told.err
    assert "Traceback" not in told.err + told.out


def test_a_bound_that_a_plan_on_fewer_machines_beats_is_lowered_and_counted(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    procurement = purchases.loaded(purchases.asked(tmp_path / "list.csv", [row("small", most=4)], objective="time"))
    wrong = {1: 7000.0, 2: 3000.0, 3: 3600.0, 4: 4000.0}  # more machines, more time

    def planned(self: Oracle, fleet: Fleet, search: Search, enough_s: float) -> Trained:
        self.num_planned += 1
        return Trained(seconds=wrong[fleet.counts[0]], bound=wrong[fleet.counts[0]], used=fleet.counts)

    monkeypatch.setattr(Oracle, "ideal_rate", lambda self, offer: 1 / 12_000)
    monkeypatch.setattr(Oracle, "_planned", planned)
    fleets = Fleets(procurement=procurement)
    market = fleets.markets(1)[0]
    assert fleets.trained(market, (4,), Search()).bound == 4000
    assert fleets.trained(market, (2,), Search()).value == 3000
    assert fleets.num_contradictions == 1
    found = purchases.answered(procurement)
    assert found.certificate.bound <= found.choice.objective


def test_a_bound_is_lowered_where_a_plan_on_more_machines_needs_no_more_than_it_is_of(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    procurement = purchases.loaded(purchases.asked(tmp_path / "list.csv", [row("small", most=4)], objective="time"))
    made = {3: (4000.0, 3), 4: (3000.0, 2)}  # seconds, machines that the plan needs

    def planned(self: Oracle, fleet: Fleet, search: Search, enough_s: float) -> Trained:
        seconds, used = made[fleet.counts[0]]
        return Trained(seconds=seconds, bound=seconds, used=(used,))

    monkeypatch.setattr(Oracle, "ideal_rate", lambda self, offer: 1 / 12_000)
    monkeypatch.setattr(Oracle, "_planned", planned)
    fleets = Fleets(procurement=procurement)
    market = fleets.markets(1)[0]
    assert [fleets.trained(market, (number,), Search()).bound for number in (3, 4)] == [4000, 3000]
    assert fleets.num_contradictions == 1
    assert fleets.trained(market, (3,), Search()).bound == 3000
