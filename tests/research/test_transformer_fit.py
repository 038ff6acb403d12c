"""The fit on rows made up by the model itself, and the shipped figures against measured rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformer_rates_drawn import GPT, TIERS

from planner.data.fits import transformer_rates
from planner.families.hybrid.risk import MEASURED
from planner.models.compute import Constants, Software
from planner.models.layouts import Schedule
from research.bands import band
from research.transformer_fit.fit import PRIORS, SOFTWARE, Table, as_unmeasured, described, fit, predict, software_of
from research.transformer_fit.low_rows import fitted_rows, published_rows, read_low_rows
from research.transformer_fit.report import bands, errors_of, folds, summary_text, table_text, unmeasured_band
from research.transformer_fit.rows import FAMILIES, Row

STARTS = {name: prior.start for name, prior in PRIORS.items()}


def made_up(microbatch: int, *, num_layers: int = 12, iteration_s: float = 1.0, family: str = "made up") -> Row:
    return Row(
        family=family,
        group=(family, str(num_layers)),
        transformer=replace(GPT, num_layers=num_layers),
        device="a100-sxm4-80gb",
        tiers=TIERS,
        software="megatron-lm",
        layout={"microbatch": microbatch, "num_microbatches": 16 // microbatch, "data": 2},
        iteration_s=iteration_s,
    )


def rows_of(parameters: dict[str, float]) -> list[Row]:
    rows = [made_up(size, num_layers=count) for count in (8, 12) for size in (1, 4, 16)]
    seconds = Table(rows).predict(parameters)
    return [replace(row, iteration_s=float(one)) for row, one in zip(rows, seconds, strict=True)]


def test_the_priors_lie_within_their_bounds_and_are_few() -> None:
    assert all(prior.low < prior.start < prior.high and prior.width > 0 for prior in PRIORS.values())
    constants = [name for name in PRIORS if name.startswith("constants.")]
    software = [name for name in PRIORS if name.startswith("software.")]
    devices = {name.split(".")[1] for name in PRIORS if name.startswith("devices.")}
    assert len(constants) <= 13
    assert len(software) <= len(SOFTWARE)
    machines = [name for name in PRIORS if name.startswith("machines.")]
    assert machines == ["machines.simumax-b200"]
    assert len(PRIORS) == len(constants) + len(software) + 3 * len(devices) + len(machines)


def test_rows_that_the_priors_predict_leave_the_priors_as_they_are() -> None:
    assert fit(Table(rows_of(STARTS))) == pytest.approx(STARTS, rel=1e-3)


def test_a_fit_predicts_rows_of_other_figures_better_than_the_priors_do() -> None:
    moved = {**STARTS, "devices.a100-sxm4-80gb.product_efficiency": 0.6, "software.megatron-lm.launch_s": 1.4e-3}
    table = Table(rows_of(moved))
    before, after = (np.abs(predict(table, one)).mean() for one in (STARTS, fit(table)))
    assert before > 0.1
    assert after < before / 5


def test_what_a_parameter_does_not_touch_is_not_predicted_anew() -> None:
    table = Table(rows_of(STARTS))
    known = table.predict(STARTS)
    moved = {**STARTS, "devices.a100-sxm4-80gb.product_efficiency": 0.6}
    assert table.predict(moved, "devices.a100-sxm4-80gb.product_efficiency", known) == pytest.approx(
        table.predict(moved)
    )
    other = "devices.h100-sxm.product_efficiency"
    assert table.predict({**STARTS, other: 0.5}, other, known) == pytest.approx(known)


def test_regret_is_what_the_layout_that_is_ranked_first_takes_longer() -> None:
    rows = [made_up(size, iteration_s=seconds) for size, seconds in ((1, 1.0), (4, 1.1), (16, 2.0))]
    found = errors_of(rows, np.array([0.3, 0.0, 0.0]))  # predicted 1.3, 1.1, 2.0
    assert found.regret == pytest.approx(0.1)
    assert found.rank == pytest.approx(0.5)
    assert (found.mean, found.largest, found.bias) == pytest.approx((0.1, 0.3, 0.1))
    assert found.num_groups == 1


def test_a_group_is_left_out_whole_and_every_row_once() -> None:
    rows = [made_up(size, num_layers=count) for count in range(1, 8) for size in (1, 2)]
    chosen = folds(rows)
    assert sorted(index for fold in chosen for index in fold) == list(range(len(rows)))
    for fold in chosen:
        inside = {rows[index].group for index in fold}
        assert all(rows[index].group not in inside for index in range(len(rows)) if index not in fold)


def test_a_band_is_judged_by_the_other_groups() -> None:
    rows = [made_up(1, num_layers=count) for count in range(1, 6)]
    low, high, share = bands(rows, np.array([0.0, 0.0, 0.0, 0.0, 1.0]))["made up"]
    assert low == pytest.approx(-0.3)
    assert high == pytest.approx(0.0)
    assert share == pytest.approx(4 / 5)  # the last group lies outside the others' band


def test_a_band_of_a_device_counts_families_alike_and_not_their_rows() -> None:
    many = [made_up(1, num_layers=count, family="many") for count in range(1, 10) for _ in range(10)]
    few = [made_up(1, num_layers=count, family="few") for count in range(1, 10)]
    errors = np.array([0.0] * len(many) + [0.25] * len(few))
    low, high, share = bands([*many, *few], errors, lambda row: row.device)["a100-sxm4-80gb"]
    assert (low, high) == pytest.approx((-0.2, 0.0))
    assert share == pytest.approx(1.0)


def test_a_band_of_a_device_is_judged_by_families_that_a_fit_did_not_see() -> None:
    rows = [made_up(size, num_layers=8, family=name) for name in "abcdef" for size in (1, 2, 4, 8)]
    errors = np.repeat([-0.1, -0.05, 0.0, 0.05, 0.1, 1.0], 4)  # each family's rows are alike
    of_groups = bands(rows, errors, lambda row: row.device)["a100-sxm4-80gb"]
    low, high, share = bands(rows, errors, lambda row: row.device, lambda row: row.family)["a100-sxm4-80gb"]
    assert (low, high, share) == of_groups  # a family of one group is one source either way
    assert share == pytest.approx(5 / 6)
    assert low < 1 / 1.1 - 1 < 1 / 0.9 - 1 < high


def test_a_fit_that_begins_near_its_end_ends_where_one_from_the_priors_does() -> None:
    moved = {**STARTS, "devices.a100-sxm4-80gb.product_efficiency": 0.7, "software.megatron-lm.launch_s": 9e-4}
    table = Table(rows_of(moved))
    far = fit(table)
    near = fit(table, {**far, "devices.a100-sxm4-80gb.product_efficiency": 0.72})
    assert table.predict(near) == pytest.approx(table.predict(far), rel=2e-3)


def test_the_table_has_a_line_for_each_family_and_way() -> None:
    rows = [made_up(1), made_up(2), made_up(1, family="other")]
    text = table_text(rows, {"fitted": np.zeros(3), "left out": np.zeros(3)})
    assert len(text.splitlines()) == 2 + 2 * 2


def test_the_summary_has_a_line_for_each_family_with_the_regret_of_one_way() -> None:
    rows = [made_up(size, iteration_s=float(size)) for size in (1, 2, 4)] + [made_up(1, family="other")]
    ways = {"fitted": np.zeros(4), "left out": np.array([4.0, 0.0, 0.0, 0.5])}  # of 5, 2 and 4 s the second is chosen
    lines = summary_text(rows, ways, "left out").splitlines()[2:]
    assert lines == ["| made up | 3 | 0.0 % | 133.3 % | 100.0 %, 100.0 % |", "| other | 1 | 0.0 % | 50.0 % | - |"]


# -- what ships --------------------------------------------------------------------------------------------------------


def shipped() -> dict[str, float]:
    """The shipped figures by the names of the fit."""
    rates = transformer_rates()
    found = {f"constants.{name}": value for name, value in rates["constants"].items()}
    for name in PRIORS:
        section, key, *field = name.split(".")
        if section != "constants":
            found[name] = rates[section][key][field[0]] if field else rates[section][key]
    return found


def test_the_shipped_file_holds_every_parameter_and_fills_the_models_classes() -> None:
    parameters = shipped()
    assert parameters.keys() == PRIORS.keys()
    rates = transformer_rates()
    Constants(**rates["constants"])
    for name in SOFTWARE:
        Software(name=name, **rates["software"][name])
    again = described(parameters)
    assert again["devices"] == dict(rates["devices"])
    assert again["machines"] == dict(rates["machines"])
    assert again["software"] == {name: rates["software"][name] for name in SOFTWARE}


def test_every_shipped_figure_lies_within_the_bounds_of_its_prior() -> None:
    for name, value in shipped().items():
        assert PRIORS[name].low * 0.999 <= value <= PRIORS[name].high * 1.001, name


@pytest.mark.measured
def test_the_rows_that_are_read_are_those_whose_settings_are_told(data_folder: Path) -> None:
    rows = fitted_rows(data_folder)
    recipes = {f"recipes-{name}" for name in ("h100-8b", "h100-405b", "h100-15b", "h100-grok", "gb200-405b")}
    assert {row.family for row in rows} == set(FAMILIES) | recipes | {"published-b200"} | {
        f"nanotron-{model}" for model in ("1b", "3b", "8b")
    }
    for row in rows:
        one = row.layouts()
        assert int(one.num_devices[0]) >= 1
        assert row.iteration_s > 0


@pytest.mark.measured
def test_rows_whose_tokens_are_dropped_are_sent_to_each_expert(data_folder: Path) -> None:
    rows = read_low_rows(data_folder)
    dropped = [one for one in rows if one.container == "25.09" and one.model.startswith("Qwen3")]
    assert {one.row.sends_each for one in dropped} == {True}
    program = software_of(STARTS, "megatron-core")
    for one in rows:
        told = one.row.told(program)
        assert told.sends_once is not one.row.sends_each
        assert told.handed_bytes_per_s == program.handed_bytes_per_s
        assert told.gradient_bytes == (2.0 if one.row.has_bf16_gradients else program.gradient_bytes)


def test_rows_that_hybridep_sends_are_bounded_by_no_multiprocessors_that_hand_on() -> None:
    program = software_of(STARTS, "megatron-core")
    hybrid = [one.row for one in published_rows() if one.row.told(program).handed_bytes_per_s > 1e15]
    assert {(row.device, row.layout["expert"]) for row in hybrid} == {("h100-sxm", 16)}


# Somewhat more than the fit leaves, by family: what a change of the model may not spoil unnoticed.
LARGEST_MEAN = {
    "korthikanti-table5": 0.025,
    "sc21-table1": 0.025,
    "sc21-table2": 0.03,
    "mt-nlg-530b": 0.035,
    "torchtitan-h100": 0.045,
    "simumax-b200": 0.035,
    "llm-foundry": 0.025,
    "llm-foundry-a100": 0.05,
    "bigscience-176b-sweep": 0.055,
    "vtrain-multi": 0.10,
    "vtrain-single": 0.07,
    "recipes-h100-8b": 0.02,
    "recipes-h100-405b": 0.015,
    "recipes-h100-15b": 0.03,
    "recipes-h100-grok": 0.025,
    "recipes-gb200-405b": 0.015,
    "published-b200": 0.02,
}


@pytest.mark.measured
@pytest.mark.parametrize("family", LARGEST_MEAN)
def test_the_shipped_figures_predict_the_measured_steps(data_folder: Path, family: str) -> None:
    rows = [row for row in fitted_rows(data_folder) if row.family == family]
    errors = predict(Table(rows), shipped())
    assert np.abs(errors).mean() < LARGEST_MEAN[family]


def test_a_slower_machine_of_a_source_slows_its_own_rows_alone() -> None:
    """Half the share of products: longer there, and as before in a family of the same network and device."""
    name = "machines.simumax-b200"
    rows = [replace(made_up(4, family=family), device="b200-sxm") for family in ("simumax-b200", "another")]
    table = Table(rows)
    known, slow = (table.predict({**STARTS, name: ratio}) for ratio in (1.0, 0.5))
    assert slow[0] > 1.3 * known[0]
    assert slow[1] == known[1] == pytest.approx(known[0])
    assert table.predict({**STARTS, name: 0.5}, name, known).tolist() == slow.tolist()


def test_a_device_that_is_left_out_has_what_the_others_tell() -> None:
    """Products by the FLOP that a joule pays for, which two devices tell exactly; attention as a part of that."""
    products = {name: f"devices.{name}.product_efficiency" for name in ("a100-sxm4-80gb", "h100-sxm", "b200-sxm")}
    paid = [312e12 / 400, 989e12 / 700, 2250e12 / 1000]
    follows = {one: 0.6 * (flop_per_j / 1e12) ** -0.3 for one, flop_per_j in zip(products.values(), paid, strict=True)}
    told = as_unmeasured({**STARTS, **follows, products["h100-sxm"]: 0.1}, ["a100-sxm4-80gb", "b200-sxm"])
    assert told[products["h100-sxm"]] == pytest.approx(follows[products["h100-sxm"]], rel=1e-3)
    assert {name: told[name] for name in STARTS if "h100" not in name and "gb200" not in name} == {
        **{name: STARTS[name] for name in STARTS if "h100" not in name and "gb200" not in name},
        **{name: follows[name] for name in products.values() if "h100" not in name},
    }


def test_on_a_device_left_out_the_band_is_that_of_devices() -> None:
    """Of each the mean of its families, of whatever numbers of rows."""
    rows = [replace(made_up(1, family=family), device=name) for family, name in zip("abbcde", "xxxyyz", strict=True)]
    low, high, covered = unmeasured_band(rows, np.expm1([0.2, 0.0, 0.2, -0.1, -0.3, 0.1]))
    assert (low, high) == pytest.approx(band([0.15, -0.2, 0.1]))
    assert covered == pytest.approx(2 / 3)  # two that agree leave no room for the third


@pytest.mark.measured
def test_features_are_called_measured_on_the_devices_and_with_the_programs_of_the_rows(data_folder: Path) -> None:
    found: dict[str, set[str]] = {words: set() for words in MEASURED}
    for row in fitted_rows(data_folder):
        one = {name: value[0] for name, value in row.layouts().arrays().items()}
        has_stages = one["pipeline"] > 1
        taken = {
            "an optimiser on the host": one["offload_optimizer"],
            "the schedule GPipe": has_stages and one["schedule"] == Schedule.GPIPE,
            "a schedule that puts gradients of weights off": has_stages and one["schedule"] > Schedule.ONE_F_ONE_B,
            "ZeRO 2 or 3 in a pipeline": has_stages and one["zero"] > 1,
            "ZeRO 2": one["zero"] == 2,
            "ZeRO 3": one["zero"] == 3,
            "virtual stages": one["interleave"] > 1,
            "context parallelism": one["context"] > 1,
            "expert parallelism": one["expert"] > 1,
        }
        for words, is_taken in taken.items():
            found[words] |= {row.device, row.software} if is_taken else set()
    assert found == {words: set(known) for words, known in MEASURED.items()}
