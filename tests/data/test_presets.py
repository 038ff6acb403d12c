import math
from typing import Any

import pytest

from planner.data import device, inside_link, preset, preset_names
from planner.errors import SpecError
from planner.units import Dimension, parse

KEYS = {"count", "device", "devices", "inside", "network", "nics", "latency", "storage", "host_link", "decode"}


def machines_of(name: str) -> list[dict[str, Any]]:
    machines = preset(name)["machines"]
    assert isinstance(machines, list)
    return machines


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_says_where_its_figures_stand(name: str) -> None:
    found = preset(name)
    assert set(found) == {"source", "machines"}
    assert isinstance(found["source"], str)
    assert "ection" in found["source"]


@pytest.mark.parametrize("name", preset_names())
def test_every_name_in_a_preset_resolves(name: str) -> None:
    for machine in machines_of(name):
        assert set(machine) <= KEYS
        assert device(machine["device"]).name == machine["device"]
        if isinstance(machine.get("inside"), str):
            assert inside_link(machine["inside"]).bandwidth_bytes_per_s > 0


@pytest.mark.parametrize("name", preset_names())
def test_every_figure_in_a_preset_is_finite_and_positive_and_has_a_unit(name: str) -> None:
    for machine in machines_of(name):
        rates = [machine["network"], machine.get("host_link", "1 B/s")]
        rates += [machine[key]["bandwidth"] for key in ("inside", "storage") if isinstance(machine.get(key), dict)]
        figures = [parse(rate, Dimension.RATE) for rate in rates]
        figures += [machine[key] for key in ("count", "devices", "nics") if key in machine]
        assert all(math.isfinite(figure) and figure > 0 for figure in figures)


@pytest.mark.parametrize("name", preset_names())
def test_a_machine_of_several_devices_has_a_link_inside(name: str) -> None:
    assert all("inside" in machine for machine in machines_of(name) if machine["devices"] > 1)


@pytest.mark.parametrize(
    ("name", "num_devices", "network"),
    [
        ("osf-testbed", 32, "25 Gbit/s"),
        ("dag-k80", 16, "10 Gbit/s"),
        ("dag-v100", 16, "100 Gbit/s"),
        ("gst-1g", 4, "1 Gbit/s"),
        ("gst-100g", 4, "100 Gbit/s"),
        ("adam-20", 20, "10 Gbit/s"),
        ("het-cpu", 3, "1 Gbit/s"),
        ("het-gpu", 3, "1 Gbit/s"),
        ("het-gpu-1060", 4, "1 Gbit/s"),
        ("het-gpu-1060-10g", 4, "10 Gbit/s"),
    ],
)
def test_a_preset_has_the_size_and_the_network_of_its_paper(name: str, num_devices: int, network: str) -> None:
    machines = machines_of(name)
    assert sum(machine["count"] * machine["devices"] for machine in machines) == num_devices
    assert {parse(machine["network"], Dimension.RATE) for machine in machines} == {parse(network, Dimension.RATE)}


def test_the_k80_machines_share_one_store_and_the_v100_machines_do_not() -> None:
    assert machines_of("dag-k80")[0]["storage"]["shared"] is True
    assert machines_of("dag-v100")[0]["storage"]["shared"] is False


def test_changing_a_preset_leaves_the_file_alone() -> None:
    machines_of("osf-testbed")[0]["count"] = 99
    assert machines_of("osf-testbed")[0]["count"] == 4


def test_an_unknown_preset_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(SpecError, match=r"'osf-tesbed' is not a known preset\. Did you mean 'osf-testbed'\?"):
        preset("osf-tesbed")
