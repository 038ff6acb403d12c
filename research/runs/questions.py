"""A measured run as an ordinary question: the spec that `planner predict` and `planner plan` answer.

*All-reduce*: the family ``all_reduce`` has one channel and no variation. The spec has the seconds of the slowest kind
of worker for all, since a bucket waits for them. Where layers compute they are as late as the slowest of equal workers
is expected to be; a byte that is copied into its bucket is seconds of its layer, and one of the last bucket that is
copied out, of the update. Where layers sleep they wake up late for as much of the backward pass as communication may
take. Left out is one collective beside another.

*Parameter servers*: the spec has a group of machines for every compute factor, and the overlap and barrier of the run.
Left out: connections that share a link unequally, what messages and keys cost; slices of a tensor are as large as one
another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.calibration.run_files import AllReduceSettings, Run, RunWorker, ServerSettings
from planner.calibration.runs import (
    all_reduce_of,
    curve_of,
    link_rate_bytes_per_s,
    message_s,
    overlap_of,
    servers_of,
    worker_parts,
)
from planner.models.ddp import DdpConstants, expected_largest

__all__ = ["all_reduce_spec", "to_spec"]

_ELEMENT_BYTES = 4  # fp32, as all runs


def to_spec(run: Run) -> dict[str, Any]:
    """Return the spec of a run, for :func:`planner.load`: its network, machines, curve, and how it was configured."""
    return all_reduce_spec(run) if run.family.is_all_reduce else _servers_spec(run)


def all_reduce_spec(run: Run) -> dict[str, Any]:
    """Return the run as plain data of a spec, for :func:`planner.load`, or to be written as JSON or YAML.

    Raises
    ------
    ModelError
        If the run is one with parameter servers.
    """
    settings, curves = all_reduce_of(run)
    slowest = max(run.workers, key=lambda worker: worker.compute_factor)
    curve, _ = curve_of(curves)
    parts = worker_parts(run, slowest)
    number = run.num_workers
    copied_out_s = _copy_s_per_byte(settings) * settings.buckets[-1].size_bytes
    groups = [{"tensors": list(names)} for names in _groups(slowest, settings)]
    return {
        "dnn": {
            "name": run.job_id,
            "layers": [piece.to_spec() for piece in reversed(_pieces(run, slowest, settings))],
            "profile_batch": 1,
            "batch_per_device": 1,
        },
        "cluster": {
            "machines": [
                {
                    "count": number,
                    "device": {"name": "worker", "kind": "cpu", "source": f"profile of {run.job_id}"},
                    "network": f"{run.network.link_rate_bytes_per_s!r} B/s",
                    "latency": f"{run.network.delay_s!r} s",
                }
            ]
        },
        "objective": "iteration_time",
        "families": ["all_reduce"],
        "calibration": {
            "fusion_unit": "tensor",
            "update": f"{parts.update_s + copied_out_s!r} s",
            "source": f"curve of {run.session}",
            "curves": [
                {
                    "num_devices": number,
                    "points": [
                        [f"{int(size)} B", f"{seconds!r} s"]
                        for size, seconds in zip(curve.size_bytes, curve.seconds, strict=True)
                    ],
                }
            ],
        },
        "configuration": {"all_reduce": {"num_devices": number, "fusion_groups": groups}},
    }


@dataclass(slots=True)
class _Piece:
    """Consecutive gradients of one layer, as a layer of the spec; tensors in the order of communication."""

    name: str
    tensors: list[tuple[str, int]]
    forward_s: float
    backward_s: float

    def to_spec(self) -> dict[str, Any]:
        """Return the layer's block; the last tensor of a layer is the first to be ready."""
        return {
            "name": self.name,
            "forward": f"{self.forward_s!r} s",
            "backward": f"{self.backward_s!r} s",
            "tensors": [
                {"name": name, "elements": max(size // _ELEMENT_BYTES, 1)} for name, size in reversed(self.tensors)
            ],
        }


def _groups(worker: RunWorker, settings: AllReduceSettings) -> list[list[str]]:
    """Return the tensors of every bucket, by when they are ready."""
    ready_s = {tensor.name: tensor.ready_offset_s for layer in worker.layers for tensor in layer.tensors}
    return [sorted(bucket.tensors, key=lambda name: ready_s[name]) for bucket in settings.buckets]


def _pieces(run: Run, worker: RunWorker, settings: AllReduceSettings) -> list[_Piece]:
    """Return the network in order of communication, cut where a layer's gradients do not follow one another.

    A piece is ready when its last gradient is, so that its backward seconds are what passes since the piece before it;
    what is left of the backward pass is the last piece's.
    """
    parts, copy_s_per_byte = worker_parts(run, worker), _copy_s_per_byte(settings)
    alike = sum(other.compute_factor == worker.compute_factor for other in run.workers)
    late = 1 + expected_largest(alike) * parts.deviation if run.family.is_real else 1.0
    layer_of = {tensor.name: layer for layer in worker.layers for tensor in layer.tensors}
    tensor_of = {tensor.name: tensor for layer in worker.layers for tensor in layer.tensors}
    pieces: list[_Piece] = []
    count: dict[str, int] = {}
    before_s = 0.0
    for name in (name for names in _groups(worker, settings) for name in names):
        layer, tensor = layer_of[name], tensor_of[name]
        ready_s = max(before_s, late * tensor.ready_offset_s * parts.stretch)
        if not pieces or pieces[-1].name.split("#")[0] != layer.name:
            count[layer.name] = count.get(layer.name, 0) + 1
            number = count[layer.name]
            pieces.append(_Piece(layer.name if number == 1 else f"{layer.name}#{number}", [], 0.0, 0.0))
        pieces[-1].tensors.append((name, tensor.size_bytes))
        pieces[-1].backward_s += ready_s - before_s + late * copy_s_per_byte * tensor.size_bytes
        before_s = ready_s
    _share_forward(pieces, worker, late * parts.before_s)
    pieces[-1].backward_s += max(late * parts.backward_s - before_s, 0.0)
    if not run.family.is_real:
        _wake_late(pieces, run, settings)
    return pieces


def _wake_late(pieces: Sequence[_Piece], run: Run, settings: AllReduceSettings) -> None:
    """Make sleeping layers behind the first bucket later, for the share of their time that all-reduces take."""
    curve, _ = curve_of(all_reduce_of(run)[1])
    busy_s = float(curve(np.array([bucket.size_bytes for bucket in settings.buckets], dtype=float)).sum())
    sent = np.cumsum([len(piece.tensors) for piece in pieces])
    behind = [
        piece for piece, number in zip(pieces[1:], sent, strict=False) if number >= len(settings.buckets[0].tensors)
    ]
    left_s = sum(piece.backward_s for piece in behind)
    layers = [piece for piece in behind if "#" not in piece.name]
    for piece in layers:
        piece.backward_s += min(1.0, busy_s / left_s) * DdpConstants().wake_s * run.num_workers if left_s else 0.0


def _copy_s_per_byte(settings: AllReduceSettings) -> float:
    """Return what a byte takes that is copied into its bucket or out of it; none is where gradients are views."""
    return 0.0 if settings.is_bucket_view else DdpConstants().copy_s_per_byte


def _share_forward(pieces: Sequence[_Piece], worker: RunWorker, before_s: float) -> None:
    """Give every layer's forward seconds to its first piece, and the rest of ``before_s`` to the first layer."""
    seconds: Mapping[str, float] = {layer.name: layer.forward_s for layer in worker.layers}
    for piece in pieces:
        piece.forward_s = seconds.get(piece.name, 0.0)  # further pieces are named otherwise
    total_s = sum(piece.forward_s for piece in pieces)
    if total_s > before_s:
        for piece in pieces:
            piece.forward_s *= before_s / total_s
    else:
        pieces[-1].forward_s += before_s - total_s


def _servers_spec(run: Run) -> dict[str, Any]:
    """Return the run as plain data of a spec, for :func:`planner.load`, or to be written as JSON or YAML.

    Raises
    ------
    ModelError
        If the run is one with all-reduces.
    """
    settings, _ = servers_of(run)
    groups = _server_groups(run, settings)
    slowest = max(run.workers, key=lambda worker: worker.compute_factor)
    parts = worker_parts(run, slowest)
    return {
        "dnn": {
            "name": run.job_id,
            "layers": _layers(slowest, parts.before_s, parts.backward_s),
            "profile_batch": max(share for _, _, share in groups),
            "global_batch": sum(count * share for _, count, share in groups),
        },
        "cluster": {"machines": _machines(run, settings, groups)},
        "objective": "iteration_time",
        "families": ["parameter_server"],
        "calibration": {
            "fusion_unit": "tensor",
            "split_tensors": not settings.partition_bytes and _is_sliced(settings),
            "bandwidth_efficiency": link_rate_bytes_per_s(run) / run.network.link_rate_bytes_per_s,
            "update": f"{parts.update_s!r} s",
            "source": f"curves of {run.session}",
        },
        "configuration": {
            "parameter_server": {
                "num_parameter_servers": settings.num_servers,
                "workers": {name: count for name, count, _ in groups},
                "batch_shares": {name: share for name, _, share in groups},
                "servers": groups[0][0] if settings.is_co_located else "servers",
                "co_located": settings.is_co_located,
                "overlap": overlap_of(settings).value,
                "barrier": settings.has_barrier,
                "placement": _placement(settings),
                **({"partition_bytes": f"{settings.partition_bytes} B"} if settings.partition_bytes else {}),
            }
        },
    }


def _placement(settings: ServerSettings) -> str | dict[str, int]:
    """Return the rule by which slices or pieces lie, or the server of every tensor."""
    if settings.partition_bytes:
        return "largest_first" if settings.assignment == "greedy" else "round_robin"
    return "sliced" if _is_sliced(settings) else {key.tensor: key.server for key in settings.keys}


def _is_sliced(settings: ServerSettings) -> bool:
    """Whether tensors lie on several servers."""
    return len({key.tensor for key in settings.keys}) < len(settings.keys)


def _server_groups(run: Run, settings: ServerSettings) -> list[tuple[str, int, int]]:
    """Return name, number and samples of the workers of each compute factor: twice as slow is twice the samples.

    All are as slow as the slowest where factors are no whole multiples, or where servers, which lie in one group, share
    the hosts of unlike workers.
    """
    factors = [worker.compute_factor for worker in run.workers]
    least = min(factors)
    is_whole = all((factor / least).is_integer() for factor in factors)
    if settings.is_co_located or not is_whole:
        return [("workers", run.num_workers, 1)]
    return [
        (f"workers_{round(factor / least)}", factors.count(factor), round(factor / least))
        for factor in sorted(set(factors))
    ]


def _machines(run: Run, settings: ServerSettings, groups: Sequence[tuple[str, int, int]]) -> list[dict[str, Any]]:
    """Return the hosts: those of workers, and those of servers where they have their own."""
    hosts = [(name, count) for name, count, _ in groups]
    hosts += [("servers", settings.num_servers)] * (not settings.is_co_located)
    return [
        {
            "name": name,
            "count": count,
            "device": {"name": name, "kind": "cpu", "source": f"profile of {run.job_id}"},
            "network": f"{run.network.link_rate_bytes_per_s!r} B/s",
            "latency": f"{message_s(run) / 2!r} s",
        }
        for name, count in hosts
    ]


def _layers(worker: RunWorker, forward_s: float, backward_s: float) -> list[dict[str, Any]]:
    """Return the layers in forward order, their seconds stretched to those of whole iterations."""
    profiled_s = sum(layer.forward_s for layer in worker.layers), sum(layer.backward_s for layer in worker.layers)
    ahead = forward_s / profiled_s[0] if profiled_s[0] > 0 else 1.0
    back = backward_s / profiled_s[1] if profiled_s[1] > 0 else 1.0
    return [
        {
            "name": layer.name,
            "forward": f"{ahead * layer.forward_s!r} s",
            "backward": f"{back * layer.backward_s!r} s",
            "tensors": [
                {"name": tensor.name, "elements": max(tensor.size_bytes // _ELEMENT_BYTES, 1)}
                for tensor in layer.tensors
            ],
        }
        for layer in worker.layers
    ]
