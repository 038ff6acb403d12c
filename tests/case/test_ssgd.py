from typing import Any

import pytest
from pydantic import ValidationError

from planner.cases.forms.ssgd import Inputs, answer
from planner.errors import SpecError

SAMPLES = {"testbed": "dag-k80", "batch_per_device": 32, "sample": "1.1 MB", "device_sample": "3 MB"}
LAYERS = [{"name": "a", "forward": "1 s", "backward": "4 s", "all_reduce": "3 s", "size": "8 MB", "count": 4}]


def asked(**given: Any) -> Any:
    return answer(Inputs.model_validate(given))


def test_a_count_of_equal_layers_shares_seconds_and_bytes() -> None:
    found = asked(layers=LAYERS, bandwidth="8 MB/s")
    assert (found["forward_s"], found["backward_s"], found["all_reduce_s"]) == (1, 4, 3)
    assert found["exposed_s"] == 0.75  # the last of four
    assert found["utilisation"] == pytest.approx(1 / 3)
    assert found["num_parameters"] == 2e6


def test_a_store_that_machines_share_is_read_by_all_of_them() -> None:
    read_s = [
        asked(samples={**SAMPLES, "machines": machines, "devices_per_machine": 4})["input"]["read_s"]
        for machines in (1, 4)
    ]
    assert read_s == pytest.approx([32 * 4 * 1.1e6 / 1.1e9, 4 * 32 * 4 * 1.1e6 / 1.1e9])
    own = {**SAMPLES, "testbed": "dag-v100", "devices_per_machine": 4}
    assert asked(samples=own)["input"] == asked(samples={**own, "machines": 4})["input"]


def test_reading_and_copying_come_from_the_samples_unless_they_are_given() -> None:
    fetched = asked(layers=LAYERS, samples=SAMPLES)
    assert fetched["input"] == pytest.approx({"read_s": 0.032, "decode_s": 0, "copy_s": 0.0064})
    assert fetched["equation_1_s"] == pytest.approx(5 + 0.032 + 0.0064)
    assert asked(layers=LAYERS, samples=SAMPLES, t_io="1 s", t_h2d="2 s")["equation_1_s"] == 8


def test_the_speed_up_compares_with_one_device_that_reads_alone() -> None:
    slow = {**SAMPLES, "sample": "220 MB", "devices_per_machine": 2}  # 6.4 s alone, 12.8 s together
    assert asked(layers=LAYERS, samples=slow, num_devices=2)["speed_up"] == pytest.approx(
        2 * (6.4 + 0.0064) / (12.8 + 0.0064)
    )


def test_one_device_has_no_communication() -> None:
    assert asked(layers=LAYERS, num_devices=1)["all_reduce_s"] == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "nothing is asked. Give trace, layers or samples"),
        ({"trace": "alexnet-k80", "layers": LAYERS}, "trace and layers are given. Keep one"),
        ({"layers": []}, "at least 1 item"),
        ({"layers": [{"name": "a", "backward": 3}]}, "3 has no unit"),
    ],
)
def test_questions_that_make_no_sense_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Inputs.model_validate(given)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"'alexnet-k8' is not a known trace\. Did you mean 'alexnet-k80'"):
        asked(trace="alexnet-k8")
    with pytest.raises(SpecError, match="'dag-k8' is not a known preset"):
        asked(samples={**SAMPLES, "testbed": "dag-k8"})
