"""Fitted figures and known errors, from the files beside this one that ``make accuracy`` writes.

How far predictions of a family were off where they were held against measurements (``accuracy.yaml``); what kernels
reach, and how far seconds by their rooflines are off; errors of measured distributed runs; between which sizes
transformers' steps were measured, and the fitted figures of their cost model.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from math import exp, hypot, inf, log1p
from types import MappingProxyType
from typing import Any

from planner.cost import Band
from planner.data.devices import device
from planner.links import LinkRates
from planner.plan import Configuration, Prediction
from planner.problem import Problem
from planner.routes import routes_of
from planner.shipped import shipped_text
from planner.yaml_text import blocks_of, plain_yaml

Rows = Mapping[str, Mapping[str, Any]]
_ENDS = (("low", -1), ("high", 1))  # of a band, and their signs


class _Blocks(Rows):
    """A file's blocks, which nobody can change; each is parsed when it is asked for, as most never are."""

    def __init__(self, name: str) -> None:
        self._texts, self._parsed = blocks_of(shipped_text("planner.data", name)), dict[str, Mapping[str, Any]]()

    def __getitem__(self, key: str) -> Mapping[str, Any]:
        if key not in self._parsed:
            self._parsed[key] = MappingProxyType(plain_yaml(self._texts[key])[key])
        return self._parsed[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


_file = cache(_Blocks)


# What the measured runs of all-reduce have in common; which networks of layers and transports: the bands' own rows.
_MEASURED_DEVICES, _MEASURED_BYTES_PER_S, _MEASURED_DTYPES = (4, 32), (1.25e9, 1.25e10), ("fp32",)


def error_band(
    family: str, *, parameters: float, transport: str | None = None, is_calibrated: bool = False
) -> Mapping[str, Any] | None:
    """Return the band of measured / predicted - 1, or None where nothing of the kind has been measured.

    Keys: ``low`` and ``high``; ``coverage``, the share of rows of settings that had no part in the band and lie in it;
    ``from``, the name of the case; ``conditions``, in words.

    Parameters
    ----------
    parameters
        Trained ones of the network of layers: a band counts for about as many as were measured, and the wider
        one where two do.
    transport
        ``tcp`` or ``rdma``; None where nobody says: the wider band, of both.
    is_calibrated
        Whether links were fitted to measurements of the same network, or their rates are those they are sold by.

    >>> known = error_band("all_reduce", parameters=2.56e7, transport="rdma")
    >>> known["from"], error_band("all_reduce", parameters=1e9), error_band("telepathy", parameters=2.56e7)
    ('measured-hkbu-resnet50', None, None)
    """
    rows = _file("accuracy.yaml").get(family, {}).get("calibrated" if is_calibrated else "uncalibrated", ())
    found = [
        row
        for row in rows
        if row["transport"] == (transport or "any")
        and row["parameters"]
        and row["parameters"][0] <= parameters <= row["parameters"][1]
    ]
    if not found:
        return None
    widest = max(found, key=lambda row: row["high"] - row["low"])
    return MappingProxyType({key: widest[key] for key in ("low", "high", "coverage", "from", "conditions")})


def with_known_error(problem: Problem, family: str, configuration: Configuration, prediction: Prediction) -> Prediction:
    """Return the prediction with the error of its like, where whole iterations of the family were measured.

    And where one device computes alone, with that of its seconds. A band is never borrowed: not for computation that
    was only estimated, other numbers of devices, other rates or links inside machines, nor from measurements of parts
    of an iteration.
    """
    block = configuration.to_document()
    if (band := _band_of_one_device(problem, prediction, block)) is not None:
        return replace(prediction, relative_error=band)
    if not problem.is_computation_measured or problem.variant != "corrected":
        return prediction
    if (band := _band_of_runs(problem, family, block)) is not None:
        return replace(prediction, relative_error=band)
    if family != "all_reduce":
        return prediction
    if "groups" in block or "compression" in block:  # neither unlike devices nor compressed gradients were measured
        return prediction
    if not all(problem.calibration.links.is_pcie(group) for group in problem.cluster.machine_groups):
        return prediction
    rate = routes_of(problem.cluster).ring(block["num_machines"]).bandwidth_bytes_per_s
    asked = (block["num_devices"], _MEASURED_DEVICES), (rate, _MEASURED_BYTES_PER_S)
    if problem.training.dtype not in _MEASURED_DTYPES or not all(least <= one <= most for one, (least, most) in asked):
        return prediction
    transport = problem.calibration.transport
    if transport == "rdma" and rate < _MEASURED_BYTES_PER_S[1]:  # on which alone it was measured: the wider band
        transport = None
    found = error_band(
        family,
        parameters=sum(number for _, number, _ in problem.dnn.trained_tensors),
        transport=transport,
        is_calibrated=problem.are_links_calibrated,
    )
    return replace(prediction, relative_error=found)


def _band_of_one_device(problem: Problem, prediction: Prediction, block: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the band of a plan's seconds where one device computes alone, was measured, and the band validated."""
    bands = {profile.band for profile in problem.profiles.values()}
    if block.get("num_devices") != 1 or len(bands) != 1 or prediction.relative_error is not None:
        return None
    (band,) = bands
    if band is None or band.coverage is None or not band.is_device_measured:
        return None
    conditions = f"one device that computes alone, as {band.source} says"
    return {"low": band.low, "high": band.high, "coverage": band.coverage, "from": band.of, "conditions": conditions}


def _band_of_runs(problem: Problem, family: str, block: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the band of training on processors and links like those of measured runs, where all else is as there."""
    row, groups = _file("run_bands.yaml").get(family), problem.cluster.machine_groups
    if row is None or not problem.are_links_calibrated or problem.calibration.transport == "rdma":
        return None
    if any(group.device.kind != "cpu" or group.devices_per_machine > 1 for group in groups):
        return None
    workers = sum(block["workers"].values()) if "workers" in block else block["num_machines"]
    is_other = {"groups", "compression"} & block.keys() or block.get("synchronisation", "bsp") != "bsp"
    is_fitted = family != "all_reduce" or workers in problem.calibration.all_reduce_curves  # as all of them were
    rates = [problem.cluster.own_link(group.name).bandwidth_bytes_per_s for group in groups]
    within = [(workers, row["workers"]), *((rate, row["bytes_per_s"]) for rate in rates)]
    is_within = all(least <= one <= most for one, (least, most) in within)
    if is_other or not is_fitted or not is_within or problem.training.dtype not in _MEASURED_DTYPES:
        return None
    conditions = (
        f"{row['workers'][0]} to {row['workers'][1]} processors that train, TCP over links of 100 Mbit/s to 1 Gbit/s, "
        f"seconds of layers and what links reach measured ({row['runs']} runs; docs/accuracy_runs.md)"
    )
    known = {key: row[key] for key in ("low", "high", "coverage")}
    return MappingProxyType(known | {"from": "measured-runs", "conditions": conditions})


def fused_steps(device: str) -> Mapping[str, Any]:
    """Return what steps in short numbers take over the rooflines of fused kernels; see docs/accuracy_fused.md.

    ``slowdown``: of the device, or, without ``num_runs``, of any that was not measured; ``error``: the largest error on
    submissions that the fit did not see, None where there is one submitter only; ``batch_per_device``: the least and
    the most samples on a device; ``num_runs``: how many it is fitted to.

    >>> "num_runs" in fused_steps("h100-sxm"), "num_runs" in fused_steps("k80")
    (True, False)
    """
    rows = _file("fused_steps.yaml")
    found: Mapping[str, Any] = rows["devices"].get(device, rows["unmeasured"])
    return found


def kernel_shares(dtype: str) -> Rows:
    """Return the fields of :class:`planner.models.kernels.Shares`, ``flop``, ``moved`` and others by kind of kernel.

    And ``error``: how far they are off for networks or devices that were left out. Kinds that were not measured in fp32
    are taken to be as they are in short numbers.

    >>> 0 < kernel_shares("fp16")["moved"]["convolution"] <= 1
    True
    """
    rows = _file("kernel_shares.yaml")
    if dtype not in ("fp32", "tf32"):
        return rows["mixed"]
    own, others = rows["fp32"], rows["mixed"]
    by_kind = {key: {**others[key], **value} for key, value in own.items() if isinstance(others.get(key), dict)}
    # Winograd's algorithm is one of vector units: products in tf32 run on tensor cores.
    return {**own, **by_kind, "winograd": own["winograd"] if dtype == "fp32" else 0.0}


def seconds_band(dtype: str, *, is_compiled: bool, device: str, is_transformer: bool = False) -> Band:
    """Return how far seconds by rooflines of kernels are off on a device, for a network that was not measured.

    Of eager programs in short numbers one device was measured: on others the errors of networks left out there, and of
    devices left out of the compiled ones, are taken to be independent, which nothing validates. In long numbers steps
    of transformers were measured; of other networks single kernels.

    >>> seconds_band("fp16", is_compiled=True, device="h100-sxm").is_device_measured
    True
    >>> seconds_band("fp16", is_compiled=False, device="tpu-v6e").coverage is None
    True
    >>> seconds_band("fp32", is_compiled=False, device="t4").is_device_measured
    False
    """
    shares = kernel_shares(dtype)
    row = shares["error"]
    if is_compiled and dtype not in ("fp32", "tf32"):
        fused = _file("fused_steps.yaml")
        is_measured = device in fused["devices"]
        return _band(
            fused["measured" if is_measured else "unmeasured"],
            of=f"steps of compiled ResNet-50, {'submitters' if is_measured else 'devices'} left out",
            source="docs/accuracy_fused.md",
            is_device_measured=is_measured,
        )
    is_long, is_measured = dtype in ("fp32", "tf32"), device in row["device"].split()
    if is_long and not is_transformer:
        row, is_measured = shares["convolutions"], False
    found = _band(
        row,
        of=row["of"],
        source="docs/accuracy_kernels.md" if is_long else "docs/accuracy_steps.md",
        is_device_measured=is_measured,
    )
    if is_long or is_measured:
        return found
    other = _file("fused_steps.yaml")["unmeasured"]
    low, high = (exp(sign * hypot(*(log1p(one[end]) for one in (row, other)))) - 1 for end, sign in _ENDS)
    of = f"{row['of']}, and devices left out of compiled ones; not validated together"
    return replace(found, low=low, high=high, of=of, coverage=None)


def transformer_band(device: str) -> Band:
    """Return how far seconds by the rooflines fitted to transformers are off, on a device measured or not.

    >>> transformer_band("h100-sxm").is_device_measured, transformer_band("tpu-v6e").is_device_measured
    (True, False)
    """
    rows, source = transformer_rates()["device_bands"], "docs/accuracy_transformers.md"
    if device in transformer_rates()["devices"]:
        row, where = (rows[device], device) if device in rows else (rows["all"], "any device")
        of = f"families of steps of transformers on {where}, left out"
        return _band(row, of=of, source=source, is_device_measured=True)
    of = "families of steps of transformers, devices left out"
    return _band(rows["unmeasured"], of=of, source=source, is_device_measured=False)


def _band(row: Mapping[str, Any], *, of: str, source: str, is_device_measured: bool) -> Band:
    return Band(
        low=row["low"],
        high=row["high"],
        of=of,
        source=source,
        coverage=row.get("coverage"),
        is_device_measured=is_device_measured,
    )


def links_reached(transport: str) -> LinkRates:
    """Return what links reach where nobody measured them; see docs/accuracy.md.

    TCP keeps a host's processors busy, which bounds each network card. RDMA reaches what it did between machines with
    NVLink and cards of 100 Gbit/s and more, and no less than TCP does on the same cards: the wire is the same, and the
    host has less to do. Devices that PCIe alone joins send to others, in their machine and elsewhere, by way of its
    host's memory.

    Parameters
    ----------
    transport
        ``tcp`` or ``rdma``.

    >>> links_reached("rdma").most_bytes_per_card, links_reached("tcp").most_bytes_per_card
    (inf, 2020000000.0)
    """
    rows, fitted = _file("links_reached.yaml"), transformer_constants()
    tcp, pcie_share = rows["tcp"], rows["pcie"]["share"]
    return LinkRates(
        network_share=tcp["share"] if transport == "tcp" else fitted["outside_efficiency"],
        inside_share=fitted["inside_efficiency"],
        pcie_share=pcie_share,
        scale_up_share=fitted["outside_efficiency"],
        host_share=pcie_share,
        most_bytes_per_card=tcp["most_bytes_per_s"] if transport == "tcp" else inf,
        least_share=tcp["share"],
        least_bytes_per_card=tcp["most_bytes_per_s"],
    )


def transformer_ranges() -> Rows:
    """Return by device: ``rows``, how many; ``sizes``, least and most of each by its name; ``software``, programs.

    And ``families``, the same by family of measurements.

    >>> transformer_ranges()["h100-sxm"]["sizes"]["experts"]
    [0, 8]
    """
    return _file("transformer_ranges.yaml")


def transformer_constants() -> Mapping[str, float]:
    """Return ``constants`` of :func:`transformer_rates` alone, whose file takes long to parse.

    >>> transformer_constants() == transformer_rates()["constants"]
    True
    """
    return _file("transformer_rates.yaml")["constants"]


@cache
def transformer_rates() -> Rows:
    """Return constants, shares of devices, figures of programs, and bands: the sections of the file, and more.

    ``low_precision``: what is fitted of products in eight and four bits and of launching
    (:class:`planner.models.low_precision.LowFigures`).

    ``constants`` and an entry of ``software`` hold the fields of the classes of these names (but the name) in
    :mod:`planner.models.compute`; an entry of ``devices`` its three fitted shares, and ``unmeasured`` what tells those
    of others (:func:`planner.models.compute.device_shares`), with ``chips``, the fitted devices themselves, and
    ``products``, the share of products of devices that one source alone tells, and ``machines``, what a source's own
    machine reached of those of others, which no plan has. An entry of ``bands`` is the 80 % band
    of measured / predicted - 1 of a family of measurements, and how much of unseen groups others' bands cover; one of
    ``device_bands`` the same of a device's families, each left out whole, of ``all`` devices' together, or,
    ``unmeasured``, of devices left out.

    >>> sorted(transformer_rates()["devices"]["h100-sxm"])
    ['attention_efficiency', 'memory_efficiency', 'product_efficiency']
    """
    sections = ("constants", "devices", "unmeasured", "machines", "products", "software", "bands", "device_bands")
    file = _file("transformer_rates.yaml")
    low = {"low_precision": _file("low_precision.yaml")}
    chips = MappingProxyType({name: device(name) for name in file["devices"]})
    more = {"chips": chips, **low}
    found = {name: file.get(name, MappingProxyType({})) for name in sections}
    software = found["software"]  # Primus runs Megatron-Core: no step of its own is fitted
    found["software"] = MappingProxyType({**software, "primus": software["megatron-core"]})
    return MappingProxyType({**found, **more})
