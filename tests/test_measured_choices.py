"""Choices between devices that were measured and others: told, and not won by a peak alone."""

from pathlib import Path
from typing import Any

import pytest

import planner
from planner.data.fits import seconds_band, transformer_band
from planner.errors import SpecError

DNN: dict[str, Any] = {"zoo": "resnet50", "dtype": "fp16", "global_batch": 256, "dataset_samples": 100_000}
MEASURED: dict[str, Any] = {"name": "known", "count": 1, "device": "rtx-3090", "devices": 1, "network": "25 Gbit/s"}


def of_two(device: Any, **more: Any) -> Any:
    """The plan of a cluster of a measured device and of another."""
    other = {"name": "other", "count": 1, "device": device, "devices": 1, "network": "25 Gbit/s"}
    cluster = {"machines": [MEASURED, other]}
    return planner.plan(planner.load({"dnn": DNN, "cluster": cluster, "families": ["all_reduce"], **more}))


def made_up(bandwidth: str) -> dict[str, str]:
    """A device of a hundred times the measured one's peak."""
    return {
        "name": "paper",
        "fp32": "3500 TFLOP/s",
        "fp16": "7000 TFLOP/s",
        "memory": "64 GiB",
        "memory_bandwidth": bandwidth,
    }


def test_a_peak_without_bandwidth_wins_nothing() -> None:
    slow, quick = (of_two(made_up(one), constraints={"devices": 1}) for one in ("200 GB/s", "20 TB/s"))
    seconds = {"rtx-3090": 0.0, "paper": 0.0}
    for name, device in (("rtx-3090", "rtx-3090"), ("paper", made_up("200 GB/s"))):
        alone = {"machines": [{"count": 1, "device": device}]}
        seconds[name] = planner.plan(planner.load({"dnn": DNN, "cluster": alone, "families": ["all_reduce"]})).objective
    assert slow.objective == pytest.approx(seconds["rtx-3090"])
    assert seconds["paper"] > 1.5 * seconds["rtx-3090"]
    assert quick.objective < 0.5 * seconds["rtx-3090"]


@pytest.mark.parametrize("family", ["all_reduce", "parameter_server", "pipeline"])
def test_where_computing_goes_is_told_by_kind_of_layer(family: str) -> None:
    cluster = {"machines": [{**MEASURED, "count": 2}]}
    plan = planner.plan(planner.load({"dnn": DNN, "cluster": cluster, "families": [family]}))
    (line,) = [one for one in plan.explanation if "by kind of layer" in one]
    assert "convolution" in line and "batch norm" in line


def test_a_choice_that_rests_on_an_unmeasured_device_has_the_best_measured_one_beside_it() -> None:
    plan = of_two("mi300x")
    (told,) = [one for one in plan.cautions if "rests on" in one]
    assert told.startswith(
        "the choice rests on mi300x, where no training steps were measured; the best plan on measured"
    )
    alone = planner.plan(planner.load({"dnn": DNN, "cluster": {"machines": [MEASURED]}, "families": ["all_reduce"]}))
    assert f"({100 * (alone.objective / plan.objective - 1):+.3g} %)" in told
    assert not [one for one in of_two("rtx-3090").cautions if "rests on" in one]


def test_of_one_device_alone_the_band_of_its_seconds_is_the_expected_error() -> None:
    spec = {"dnn": DNN, "cluster": {"machines": [MEASURED]}, "families": ["all_reduce"]}
    error = planner.plan(planner.load(spec)).prediction.relative_error
    band = seconds_band("fp16", is_compiled=False, device="rtx-3090")
    assert error is not None and (error["low"], error["high"], error["coverage"]) == (
        band.low,
        band.high,
        band.coverage,
    )
    other = {**MEASURED, "device": "l4"}
    assert planner.plan(planner.load({**spec, "cluster": {"machines": [other]}})).prediction.relative_error is None


def test_pessimistic_seconds_are_slower_by_the_band_of_the_device_and_measured_ones_are_refused() -> None:
    spec = {"dnn": DNN, "cluster": {"machines": [MEASURED]}}
    usual, slow = (
        planner.load({**spec, "calibration": {"pessimistic": one}}).profiles["rtx-3090"] for one in (False, True)
    )
    band = seconds_band("fp16", is_compiled=False, device="rtx-3090")
    assert slow.forward(8) == pytest.approx((1 + band.high) * usual.forward(8))
    with pytest.raises(SpecError, match="pessimistic"):
        planner.load({**spec, "calibration": {"pessimistic": True, "utilisation": 0.5}})


@pytest.mark.parametrize("family", ["all_reduce", "hybrid"])
def test_transformers_are_as_pessimistic_by_every_family_and_say_so(family: str) -> None:
    machines = [{"count": 1, "device": "h100-sxm"}]
    dnn = {"zoo": "bert-large", "global_batch": 32, "dtype": "bf16"}
    spec = {"dnn": dnn, "cluster": {"machines": machines}, "families": [family], "objective": "iteration_time"}
    usual = planner.plan(planner.load(spec))
    slow = planner.plan(planner.load({**spec, "calibration": {"pessimistic": True}}))
    assert slow.objective / usual.objective == pytest.approx(1 + transformer_band("h100-sxm").high, rel=0.01)
    assert any("slow end" in one for one in slow.assumptions)


def test_the_band_of_pessimistic_seconds_ends_where_they_are() -> None:
    spec = {"dnn": DNN, "cluster": {"machines": [MEASURED]}, "families": ["all_reduce"]}
    usual, slow = (
        planner.plan(planner.load({**spec, "calibration": {"pessimistic": one}})).prediction for one in (False, True)
    )
    assert usual.relative_error is not None and slow.relative_error is not None
    assert slow.relative_error["high"] == 0
    for one, end in ((usual, "low"), (usual, "high")):
        seconds = one.iteration_time_s * (1 + usual.relative_error[end])
        assert slow.iteration_time_s * (1 + slow.relative_error[end]) == pytest.approx(seconds, rel=0.01)


def test_a_purchase_by_bands_reads_calibrations_from_files(tmp_path: Path) -> None:
    folder = tmp_path / "measured"
    folder.mkdir()
    (folder / "ring.csv").write_text("size_bytes,seconds\n1000,0.0001\n100000000,0.1\n")
    (folder / "all.yaml").write_text("curves: [{num_devices: 2, file: ring.csv}]\n")
    spec = tmp_path / "buy.yaml"
    spec.write_text(
        "dnn: {zoo: alexnet, dtype: fp16, global_batch: 256, epochs: 1}\n"
        "calibration: measured/all.yaml\n"
        "procure: {deadline: 10 h, providers: [lambda], as_of: any, most_devices: 8}\n"
    )
    usual, slow = (planner.procure(spec, is_robust=robust) for robust in (False, True))
    assert slow.choice.cost_usd > usual.choice.cost_usd
    assert any("as slowly as the band" in one for one in slow.assumptions)
