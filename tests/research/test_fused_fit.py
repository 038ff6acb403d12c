"""Steps of compiled networks in short numbers: the fit, the shipped table, and what a plan says of it."""

from pathlib import Path
from typing import Any

import pytest

import planner
from planner.data import device
from planner.data.fits import fused_steps, kernel_shares
from planner.errors import SpecError
from planner.models.kernels import Execution, Shares, layer_seconds
from planner.models.roofline import DeviceLimits
from planner.problem import Problem
from research.fused_fit import Run, left_out_errors, page, read_runs, slowdown, slowdown_of, table_text

ROOT = Path(__file__).parents[2]


def run_of(samples_per_s: float, submitter: str = "one", **more: Any) -> Run:
    given: dict[str, Any] = {"device": "h100-sxm", "num_devices": 8, "batch_per_device": 400.0, "is_logged": True}
    return Run(submitter=submitter, samples_per_s=samples_per_s, **{**given, **more})


OTHERS = [
    run_of(samples_per_s, submitter, device=name)
    for name in ("l4", "a30")
    for samples_per_s, submitter in ((1000.0, "one"), (800.0, "two"))
]


def question(device: str = "h100-sxm", *, batch: int = 3200, **dnn: Any) -> Problem:
    machines = [{"count": 1, "device": device, "devices": 8}]
    asked = {"zoo": "resnet50", "dtype": "bf16", "global_batch": batch, **dnn}
    calibration = {"execution": "compiled"}
    spec = {"dnn": asked, "cluster": {"machines": machines}, "families": ["all_reduce"], "calibration": calibration}
    return planner.load(spec)


def rooflines_s(batch: int, name: str = "h100-sxm") -> float:
    """Seconds of a step of ResNet-50 whose kernels are fused."""
    execution = Execution.of("bf16", is_fused=True, has_channels_last=True)
    limits, shares = DeviceLimits.of(device(name), "bf16"), Shares.of(kernel_shares("bf16"))
    return sum(float(one.sum()) for one in layer_seconds(question().dnn, batch, limits, shares, execution))


def test_a_slowdown_is_measured_over_predicted_seconds() -> None:
    assert slowdown(run_of(1000.0)) == pytest.approx(400 / 1000 / rooflines_s(400))
    assert slowdown_of([run_of(100.0), run_of(400.0)]) == pytest.approx(slowdown(run_of(200.0)))


def test_an_error_is_that_of_a_fit_without_the_submitter() -> None:
    runs = [run_of(1000.0), run_of(3000.0), run_of(2000.0, "two")]
    assert left_out_errors(runs) == pytest.approx([1000 / 2000 - 1, 3000 / 2000 - 1, 2000 / 3e6**0.5 - 1])
    assert left_out_errors([run_of(1.0), run_of(2.0)]) == []


def test_few_samples_and_many_devices_are_shown_but_not_fitted() -> None:
    fitted = [run_of(1000.0), run_of(900.0, "two"), *OTHERS]
    runs = [*fitted, run_of(500.0, batch_per_device=16.0), run_of(400.0, num_devices=512)]
    assert [run.is_fitted for run in runs] == [True] * 6 + [False] * 2
    assert "h100-sxm: {slowdown" in table_text(runs)
    assert "num_runs: 2," in table_text(runs)
    error = slowdown_of(fitted[:2]) / slowdown(runs[-1]) - 1
    assert f"| `h100-sxm` | 512 | 400 | {error:+.1%} |" in page(runs)


def test_the_error_of_unmeasured_devices_is_that_of_devices_left_out() -> None:
    runs = [run_of(1000.0), *OTHERS]
    one, two, three = slowdown(runs[0]), slowdown_of(OTHERS[:2]), slowdown_of(OTHERS[2:])
    assert f"unmeasured: {{slowdown: {(one * two * three) ** (1 / 3):.4f}, " in table_text(runs)
    assert f"{(two * three) ** 0.5 / one - 1:+.1%} |" in page(runs)
    assert f"{(one * three) ** 0.5 / two - 1:+.1%} |" in page(runs)


@pytest.mark.measured
def test_the_shipped_table_and_page_are_what_the_command_writes(data_folder: Path) -> None:
    runs = read_runs(data_folder)
    assert len(runs) > 40
    assert (ROOT / "planner/data/fused_steps.yaml").read_text() == table_text(runs)
    assert (ROOT / "docs/accuracy_fused.md").read_text() == page(runs)


def test_a_network_in_short_numbers_takes_as_long_as_was_measured_and_says_so() -> None:
    problem, row = question(), fused_steps("h100-sxm")
    profile = problem.profiles["h100-sxm"]
    seconds = float(sum(passes(512) for passes in profile.whole))
    assert seconds == pytest.approx(row["slowdown"] * rooflines_s(512))
    assert any("MLPerf" in one for one in problem.assumptions)
    assert not any("were measured there" in one for one in problem.warnings)


def test_a_device_that_nobody_measured_takes_what_the_others_take_and_says_so() -> None:
    problem = question("b200-sxm")
    profile = problem.profiles["b200-sxm"]
    seconds = float(sum(passes(512) for passes in profile.whole))
    assert seconds == pytest.approx(fused_steps("b200-sxm")["slowdown"] * rooflines_s(512, "b200-sxm"))
    assert any(one.startswith("b200-sxm: no training steps were measured") for one in problem.warnings)


def test_of_two_devices_the_one_without_a_figure_is_named() -> None:
    each = {"count": 1, "devices": 8, "network": "100 Gbit/s"}
    machines = [{**each, "name": name, "device": name} for name in ("h100-sxm", "b200-sxm")]
    dnn = {"zoo": "resnet50", "dtype": "bf16", "global_batch": 3200}
    spec = {"dnn": dnn, "cluster": {"machines": machines}, "calibration": {"execution": "compiled"}}
    problem = planner.load(spec)
    assert [one.split(":")[0] for one in problem.warnings if "were measured there" in one] == ["b200-sxm"]


def test_other_networks_and_fewer_samples_than_measured_are_warned_of() -> None:
    assert any("for vgg16 it is uncalibrated" in one for one in question(zoo="vgg16").warnings)
    assert any("16 samples on a device are fewer" in one for one in question(batch=128).warnings)
    assert not any("fewer than were measured" in one for one in question().warnings)


def test_eager_kernels_take_longer_than_fused_ones() -> None:
    machines = [{"count": 1, "device": "rtx-3090"}]
    seconds = {}
    for execution in ("eager", "compiled"):
        for form in ("contiguous", "channels_last"):
            calibration = {"execution": execution, "memory_format": form}
            dnn = {"zoo": "resnet50", "dtype": "fp16", "global_batch": 128}
            problem = planner.load({"dnn": dnn, "cluster": {"machines": machines}, "calibration": calibration})
            profile = problem.profiles["rtx-3090"]
            seconds[execution, form] = float(profile.forward_s.sum() + profile.backward_s.sum())
    assert seconds["eager", "contiguous"] > seconds["eager", "channels_last"] > seconds["compiled", "channels_last"]


@pytest.mark.parametrize(
    ("calibration", "words"),
    [
        ({"execution": "eager", "utilisation": 0.5}, "Keep one of them"),
        ({"memory_format": "contiguous", "utilisation": 0.5}, "Keep one of them"),
        ({"execution": "eager", "flop_per_multiply_add": 1}, "Leave it out"),
        ({"execution": "lazy"}, "eager"),
    ],
)
def test_what_contradicts_itself_is_refused(calibration: dict[str, Any], words: str) -> None:
    machines = [{"count": 1, "device": "rtx-3090"}]
    with pytest.raises(SpecError, match=words):
        planner.load({"dnn": {"zoo": "resnet50"}, "cluster": {"machines": machines}, "calibration": calibration})


def test_without_a_bandwidth_an_a100_s_is_taken_and_said() -> None:
    device = {"name": "mine", "fp32": "20 TFLOP/s", "memory": "24 GiB"}
    cluster = {"machines": [{"count": 1, "device": device}]}
    problem = planner.load({"dnn": {"zoo": "alexnet"}, "cluster": cluster, "calibration": {"execution": "eager"}})
    assert any("bandwidth of mine is not known" in one and "memory_bandwidth" in one for one in problem.warnings)


def test_layers_of_unknown_kinds_are_named_with_their_share() -> None:
    layers = [
        {"name": "input", "kind": "input", "shape": [3, 8, 8]},
        {"name": "odd", "kind": "warp", "shape": [3, 8, 8], "inputs": ["input"], "multiply_adds": 1000},
    ]
    machines = [{"count": 1, "device": "rtx-3090"}]
    problem = planner.load(
        {"dnn": {"layers": layers}, "cluster": {"machines": machines}, "calibration": {"execution": "eager"}}
    )
    assert any("'warp'" in one and "100.0% of what is moved" in one for one in problem.warnings)


@pytest.mark.parametrize(
    ("dnn", "words"),
    [
        ({"zoo": "bert-base", "dtype": "bf16", "global_batch": 8}, "families are not compared alike"),
        ({"zoo": "alexnet", "dtype": "tf32"}, "no kernels were measured in tf32"),
        ({"profile": "residual-mlp.graph.txt", "profile_batch": 8}, "execution alters nothing"),
    ],
)
def test_where_rooflines_of_kernels_say_less_is_warned_of(dnn: dict[str, Any], words: str) -> None:
    if "profile" in dnn:
        dnn = {**dnn, "profile": str(Path(planner.__file__).parent / "data" / "examples" / dnn["profile"])}
    cluster = {"machines": [{"count": 1, "device": "a100-pcie-40gb"}]}
    problem = planner.load({"dnn": dnn, "cluster": cluster, "calibration": {"execution": "eager"}})
    assert any(words in one for one in problem.warnings)


def test_a_share_that_is_given_counts_alone() -> None:
    machines = [{"count": 1, "device": "h100-sxm", "devices": 8}]
    spec = {
        "dnn": {"zoo": "resnet50", "dtype": "bf16", "global_batch": 3200},
        "cluster": {"machines": machines},
        "calibration": {"utilisation": 0.3},
    }
    problem = planner.load(spec)
    assert "0.3 of the bf16 peak" in problem.profiles["h100-sxm"].origin
    assert not any("MLPerf" in one for one in problem.assumptions)


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        ({"kind": "matmul", "multiply_adds": 1000}, "Give product as well"),
        ({"kind": "copy", "product": [1, 1, 1, 1]}, "multiplies no matrices"),
        ({"kind": "matmul", "multiply_adds": 10**12, "product": [1, 1, 1, 1]}, "Make them equal"),
        ({"kind": "attention", "multiply_adds": 10, "product": [4, 4, 4, 4]}, "Make them equal"),
    ],
)
def test_operators_that_contradict_themselves_are_refused(operator: dict[str, Any], words: str) -> None:
    layers = [{"name": "one", "kind": "operator", "shape": [8], "multiply_adds": 1000, "operators": [operator]}]
    with pytest.raises(SpecError, match=words):
        planner.load({"dnn": {"layers": layers}, "cluster": {"machines": [{"count": 1, "device": "rtx-3090"}]}})


def test_products_in_tf32_take_no_algorithm_of_vector_units() -> None:
    assert Shares.of(kernel_shares("fp32")).winograd > 0
    assert Shares.of(kernel_shares("tf32")).winograd == 0
