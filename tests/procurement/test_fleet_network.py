"""A price list's network is that of the whole machine, whatever cards the device's reference machine has."""

from functools import cache
from pathlib import Path

import purchases
import pytest
from purchases import row

import planner
from planner.answer.documents import dump
from planner.procurement.check import check_file
from planner.procurement.fleet import Fleet, question_of
from planner.procurement.search import Fleets
from planner.ranking import best_plan
from planner.routes import routes_of
from planner.search import Search


@pytest.mark.parametrize(
    ("device", "devices", "inside", "gbit"),
    [("h100-sxm", 8, "nvlink-4", 3200), ("a100-sxm4-40gb", 8, "nvlink-3", 400), ("l40s", 4, "pcie-4-x16", 100)],
)
def test_the_total_of_a_price_list_is_not_taken_for_each_card(
    tmp_path: Path, device: str, devices: int, inside: str, gbit: int
) -> None:
    listed = row("box", device=device, devices=devices, inside=inside, network_gbit_per_s=gbit)
    procurement = purchases.loaded(purchases.asked(tmp_path / "list.csv", [listed]))
    fleet = Fleet(offers=Fleets(procurement=procurement).offers, counts=(4,))
    question = question_of(
        procurement, {"dnn": {"zoo": "alexnet", "global_batch": 256, "epochs": 1}}, fleet, ["all_reduce"]
    )
    problem = planner.load(question)
    assert problem.cluster.machine_groups[0].num_nics == 1
    assert routes_of(problem.cluster).ring(4).bandwidth_bytes_per_s == gbit * 1e9 / 8
    assert not [one for one in problem.key_assumptions if one.field[0] == "cluster"]


def test_more_trays_of_racks_never_train_slower_whatever_their_number_is_divisible_by(tmp_path: Path) -> None:
    listed = row("tray", device="gb200", devices=4, inside="nvlink-5", network_gbit_per_s=1600)
    procurement = purchases.loaded(purchases.asked(tmp_path / "list.csv", [listed]))
    offers = Fleets(procurement=procurement).offers
    training = {"dnn": {"zoo": "llama2-7b", "global_batch": 256, "epochs": 1, "dataset_samples": 10_000}}

    @cache
    def seconds(count: int) -> float:
        question = question_of(procurement, training, Fleet(offers=offers, counts=(count,)), ["hybrid"])
        problem = planner.load({**question, "fix": {"tensor_parallel_size": 8}})  # within a rack, beyond a tray
        found = best_plan(problem, Search())
        assert found.configuration.to_document()["data"] * 8 <= 4 * count
        return found.objective

    for number in (18, 19, 31, 37):
        assert seconds(number) <= seconds(number - 1) * (1 + 1e-9), number


def test_an_answer_of_more_trays_than_a_rack_passes_its_check(tmp_path: Path) -> None:
    """Its plan has whole racks, of which it may use as many trays as the fleet has."""
    listed = row("tray", device="gb200", devices=4, inside="nvlink-5", network_gbit_per_s=1600)
    dnn = {"zoo": "llama3.2-1b", "global_batch": 64, "epochs": 1, "dataset_samples": 64_000}
    question = purchases.asked(tmp_path / "list.csv", [listed], dnn=dnn, machines=19)
    found = planner.procure({**question, "families": ["hybrid"]}, num_alternatives=0, today=purchases.TODAY)
    assert found.choice.fleet.counts == (19,)
    answer = tmp_path / "answer.json"
    answer.write_text(dump(found.to_dict()))
    assert check_file(answer).faults == ()
    more = found.to_dict()
    more["choice"]["plans"]["training"]["problem"]["constraints"]["machines"]["at_most"] = 20
    answer.write_text(dump(more))
    assert "plans.training machines" in {one.name for one in check_file(answer).faults}
