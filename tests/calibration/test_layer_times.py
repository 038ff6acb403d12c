"""Utilisation from seconds of layers: found again where it made them, sums kept, what is not explained named."""

from pathlib import Path

import numpy as np
import pytest

from planner import zoo
from planner.calibration.layer_times import Utilisation, fit_utilisation
from planner.calibration.tables import LayerTime, LayerTimes, layers_of_profile, read_layer_table, template
from planner.data import device
from planner.errors import ModelError, SpecError
from planner.importers.profiles import read_graph_profile
from planner.models.compute import profile_from_flop

V100 = device("v100-sxm2-16g")
PEAK = V100.peak_flop_per_s["fp32"]


def layer(name: str, kind: str, work: float, share: float, *, backward: float = 2.0, **more: float) -> LayerTime:
    forward_s = 2 * work / (share * PEAK) if work else share
    return LayerTime(
        name=name, kind=kind, num_multiply_adds=work, forward_s=forward_s, backward_s=backward * forward_s, **more
    )


def fit(*layers: LayerTime, batch: float = 32) -> Utilisation:
    return fit_utilisation(LayerTimes(layers=layers, batch_size=batch, file="t.csv"), V100, dtype="fp32")


def test_the_utilisation_of_each_kind_is_found_again() -> None:
    convolutions = [layer(f"conv{i}", "convolution", 1e8 * (i + 1), 0.6) for i in range(6)]
    found = fit(*convolutions, layer("fc1", "fully_connected", 4e6, 0.2), layer("fc2", "fully_connected", 8e6, 0.2))
    assert found.by_kind == pytest.approx({"convolution": 0.6, "fully_connected": 0.2})
    assert found.scaled_by == pytest.approx(1.0)
    assert found.score is not None
    assert found.score.worst < 1e-6
    assert found.notes == ()


def test_the_sum_of_all_seconds_is_kept_by_kind_and_in_general() -> None:
    rng = np.random.default_rng(3)
    layers = [layer(f"conv{i}", "convolution", 1e8 * (i + 1), 0.6 * float(rng.lognormal(0, 0.3))) for i in range(12)]
    layers.insert(5, layer("bn", "batch_norm", 0.0, 4e-5))
    found = fit(*layers)
    total_s = sum(one.forward_s + (one.backward_s or 0) for one in layers)
    assert sum(one.predicted_s for one in found.layers) == pytest.approx(total_s)
    work = sum(one.num_multiply_adds for one in layers)
    assert 3 * 2 * work / (found.overall * PEAK) == pytest.approx(total_s)
    low, high = found.interval
    assert low < found.overall < high


def test_layers_without_multiply_adds_are_booked_on_those_before_them() -> None:
    found = fit(
        layer("pool", "pooling", 0.0, 1e-5),
        layer("conv1", "convolution", 1e8, 0.5),
        layer("bn1", "batch_norm", 0.0, 2e-5),
        layer("conv2", "convolution", 2e8, 0.5),
    )
    extra = [one.booked_s - one.measured_s for one in found.layers]
    assert extra == pytest.approx([9e-5, 0.0])
    assert found.kinds[0].bare > found.kinds[0].utilisation
    assert any("layers without multiply-adds (2: batch_norm, pooling) take" in note for note in found.notes)


def test_a_layer_that_waits_for_memory_and_one_that_its_kind_does_not_explain_are_named() -> None:
    good = [layer(f"conv{i}", "convolution", 1e8, 0.6) for i in range(8)]
    # So many parameters take longer to read than to multiply: at one sample a batch.
    found = fit(
        *good,
        layer("odd", "convolution", 1e8, 0.05),
        layer("wide", "fully_connected", 1e8, 0.1, num_parameters=1e8),
        batch=1,
    )
    words = " ".join(found.notes)
    assert "wait for memory at this batch, more than they compute: wide" in words
    assert "odd (" in words
    assert [one.name for one in found.layers if one.waits_for_memory] == ["wide"]


def test_an_odd_ratio_of_backward_to_forward_and_a_lack_of_it_are_said() -> None:
    assert any(
        "backward takes 4.00 times forward" in note
        for note in fit(layer("a", "convolution", 1e8, 0.5, backward=4)).notes
    )
    alone = LayerTime(
        name="a", kind="convolution", num_multiply_adds=1e8, forward_s=2e8 / (0.5 * PEAK), backward_s=None
    )
    found = fit(alone)
    assert found.overall == pytest.approx(0.5)
    assert "backward was not measured: it is taken to be twice forward" in found.notes


def test_a_type_that_the_device_lacks_and_layers_of_no_time_are_refused() -> None:
    with pytest.raises(ModelError, match="has no bf16 rate"):
        fit_utilisation(
            LayerTimes(layers=(layer("a", "convolution", 1e8, 0.5),), batch_size=1, file="t"), V100, dtype="bf16"
        )
    with pytest.raises(ModelError, match="no layer with multiply-adds takes any time"):
        fit(layer("bn", "batch_norm", 0.0, 1e-5))


# -- files -----------------------------------------------------------------------------------------------------------


def test_the_template_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "layers.csv"
    path.write_text(template("layers"))
    found = read_layer_table(path)
    assert found.batch_size == 32
    assert [one.name for one in found.layers] == ["conv1", "bn1", "fc"]
    assert found.layers[0].forward_s == pytest.approx(0.0021 / 32)


HEAD = "layer,kind,multiply_adds,batch,forward_ms\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + "a,conv,1e6,32,1\na,conv,1e6,32,1\n", "l.csv:3: layer: layer 'a' stands twice .first on line 2."),
        (HEAD + "a,conv,1e6,32,1\nb,conv,1e6,64,1\n", "batches of 32, 64"),
        (HEAD + "a,bn,0,32,1\n", "no layer has multiply-adds"),
        (HEAD + "a,conv,-1,32,1\n", "l.csv:2: multiply_adds: '-1' is not at least 0"),
        (HEAD + ",conv,1,32,1\n", "l.csv:2: layer: no layer's name"),
        (HEAD.replace("forward_ms", "forward_ms,forward_s") + "a,conv,1,32,1,1\n", "forward_ms and forward_s are given"),
    ],
)  # fmt: skip
def test_a_table_of_layers_that_cannot_be_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "l.csv"
    path.write_text(text)
    with pytest.raises(SpecError, match=words):
        read_layer_table(path)


def graph(tmp_path: Path, network: str, *, is_renamed: bool) -> Path:
    """A profile of a network's layers at 60 % of the peak, of 10 samples, in PipeDream's format."""
    dnn = zoo.build(network)
    profile = profile_from_flop(dnn, V100, dtype="fp32", utilisation=0.6)
    names = {"convolution": "Conv2d(3, 3)", "fully_connected": "Linear(3, 3)"}
    lines = []
    for index, one in enumerate(dnn.layers):
        if one.num_multiply_adds:
            times = (10e3 * float(profile.forward_s[index]), 10e3 * float(profile.backward_s[index]))
            name = f"node{index}" if is_renamed else one.name
            lines.append(
                f"{name} -- {names[one.kind]} -- forward_compute_time={times[0]!r}, backward_compute_time={times[1]!r}, "
                f"activation_size={40.0 * one.num_output_elements}, parameter_size={4.0 * one.num_trainable}"
            )
    path = tmp_path / f"{network}.graph.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_profile_finds_its_multiply_adds_by_name_or_by_order(tmp_path: Path, is_renamed: bool) -> None:
    path, dnn = graph(tmp_path, "resnet50", is_renamed=is_renamed), zoo.build("resnet50")
    times = layers_of_profile(path, read_graph_profile(path, batch_size=10), dnn, batch_size=10)
    assert sum(one.num_multiply_adds for one in times.layers) == dnn.num_multiply_adds
    assert bool(times.notes) is is_renamed
    found = fit_utilisation(times, V100, dtype="fp32")
    assert found.overall == pytest.approx(0.6)
    assert found.by_kind == pytest.approx({"convolution": 0.6, "fully_connected": 0.6})


def test_a_profile_of_another_network_is_refused(tmp_path: Path) -> None:
    path = graph(tmp_path, "vgg16", is_renamed=True)
    with pytest.raises(SpecError, match=r"are not those of resnet50 .*% of the multiply-adds match"):
        layers_of_profile(path, read_graph_profile(path, batch_size=10), zoo.build("resnet50"), batch_size=10)


@pytest.mark.measured
@pytest.mark.parametrize(("network", "batch"), [("vgg16", 128), ("resnet50", 128)])
def test_measured_profiles_are_matched_whole_and_keep_their_sum(data_folder: Path, network: str, batch: int) -> None:
    path, dnn = data_folder / "traces" / "pipedream" / f"{network}.graph.txt", zoo.build(network)
    measured = read_graph_profile(path, batch_size=batch)
    times = layers_of_profile(path, measured, dnn, batch_size=batch)
    assert sum(one.num_multiply_adds for one in times.layers) == dnn.num_multiply_adds
    found = fit_utilisation(times, V100, dtype="fp32")
    total_s = float(measured.profile.forward_s.sum() + measured.profile.backward_s.sum())
    assert sum(one.predicted_s for one in found.layers) == pytest.approx(total_s)
