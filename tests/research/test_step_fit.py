"""The fit of kernels' shares to training steps: what it finds again, and that page and table are of one run."""

import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest

from planner import zoo
from planner.data.fits import kernel_shares
from planner.models.kernels import kernels_of
from research.step_fit import PARAMETERS, Stacked, Step, collapsed, fitted, main, page, read, shares_of, table_text

ROOT = Path(__file__).parents[2]
HEAD = "model,memory_format,batch_size,image_size,samples_per_s,step_s,parameters_millions"
NETWORKS = ("resnet18", "vgg11", "mobilenet-v2", "densenet121", "resnext50-32x4d", "convnext-tiny")


def step(network: str, memory_format: str, batch: int) -> Step:
    dnn = zoo.build(network)
    kernels, times = collapsed(kernels_of(dnn, is_mixed=True))
    return Step(
        network=network.replace("-", "_"),
        memory_format=memory_format,
        batch=batch,
        seconds=1.0,
        num_parameters=dnn.num_trainable,
        num_tensors=dnn.num_trainable_tensors,
        kernels=kernels,
        times=times,
    )


def measured(values: dict[str, float]) -> list[Step]:
    """Steps that take exactly what the values say."""
    steps = []
    for form in ("nchw", "nhwc"):
        own = [step(name, form, batch) for name in NETWORKS for batch in (32, 256)]
        seconds = Stacked(own).seconds(shares_of(values))
        steps += [replace(one, seconds=took) for one, took in zip(own, seconds.tolist(), strict=True)]
    return steps


def test_equal_kernels_are_counted_once() -> None:
    kernels = kernels_of(zoo.build("resnet50"))
    some, times = collapsed(kernels)
    assert len(times) < len(kernels.rows) / 2
    assert times.sum() == len(kernels.rows)
    for name in ("sample_elements", "weight_elements", "launches"):
        assert (getattr(some, name) * times).sum() == pytest.approx(getattr(kernels, name).sum())


def test_what_steps_were_made_of_is_found_again() -> None:
    start = {name: row.start for name, row in PARAMETERS.items()}
    made = {**start, "convolution": 0.6, "elements": 0.6, "images": 0.8, "start_s": 2e-5}
    steps = measured(made)
    found = fitted(steps)
    for form in ("nchw", "nhwc"):
        own = [one for one in steps if one.memory_format == form]
        seconds = Stacked(own).seconds(shares_of(found))
        assert seconds == pytest.approx([one.seconds for one in own], rel=0.03)
    assert found["elements"] == pytest.approx(0.6, rel=0.1)


def test_variants_of_an_architecture_are_one_family() -> None:
    one = step("resnet18", "nchw", 32)
    names = (
        "tf_efficientnet_b4",
        "efficientnet_b0",
        "gluon_resnet50_v1b",
        "vit_base_patch16_224",
        "ssl_resnext50_32x4d",
    )
    families = [replace(one, network=name).family for name in names]
    assert families == ["efficientnet", "efficientnet", "resnet", "vit", "resnext"]


def test_page_and_table_are_of_one_run() -> None:
    text, error = (ROOT / "docs/accuracy_steps.md").read_text(), kernel_shares("fp16")["error"]
    row = next(line for line in text.splitlines() if line.startswith("| all |"))
    _, _, number, mean, median, *_ = (cell.strip() for cell in row.split("|"))
    assert [float(mean[:-1]), float(median[:-1])] == pytest.approx([100 * error["mean"], 100 * error["median"]])
    table = (ROOT / "planner/data/kernel_shares.yaml").read_text()
    assert f"from {number} training steps" in table
    values = {name: float(value) for name, value in re.findall(r"\| `(\w+)` \| ([\d.e+-]+) \|", text)}
    assert values.keys() == PARAMETERS.keys()
    written = table_text(values, {"one": [0.1, -0.1], "two": [0.0, 0.2]})
    assert written.split("error:")[0].splitlines()[1:] == _section(table).split("error:")[0].splitlines()[1:]


def _section(table: str) -> str:
    """The part of the table that the fit writes."""
    return "mixed:" + table.partition("\nmixed:")[2]


def test_networks_that_are_there_are_read_and_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "training_steps").mkdir()
    rows = ["resnet18,nchw,32,224,1000,0.032,11.7", "unheard_of,nchw,32,224,1000,0.032,1"]
    (tmp_path / "training_steps" / "timm_rtx3090_open.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    assert main(["--data", str(tmp_path), "--networks", str(tmp_path)]) == 2
    assert "research.timm_networks" in capsys.readouterr().err
    (tmp_path / "resnet18@224.pickle").write_bytes(pickle.dumps(zoo.build("resnet18")))
    (one,) = read(tmp_path, tmp_path)
    assert (one.network, one.batch, one.seconds, one.family) == ("resnet18", 32, 0.032, "resnet")
    values = {name: row.start for name, row in PARAMETERS.items()}
    assert "| all | 1 |" in page([one], values, {("resnet18", "nchw"): 0.1})
