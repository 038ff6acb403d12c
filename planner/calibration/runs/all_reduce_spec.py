"""A run of DistributedDataParallel as an ordinary question: the spec that `planner predict` and `planner plan` answer.

The family ``all_reduce`` has one channel and no variation. The spec has the seconds of the slowest kind of worker for
all, since a bucket waits for them; left out are one collective beside another, the slowest of equal workers, sleeping
layers that wake up late, and copies of buckets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.calibration.runs.all_reduce import curve_of, settings_of, worker_parts
from planner.calibration.runs.run_facts import AllReduceSettings, Run, RunWorker

__all__ = ["to_spec"]

_ELEMENT_BYTES = 4  # fp32, as all runs


def to_spec(run: Run, *, with_groups: bool = True) -> dict[str, Any]:
    """Return the run as plain data of a spec, for :func:`planner.load`, or to be written as JSON or YAML.

    Parameters
    ----------
    with_groups
        Whether to give the buckets that formed as ``configuration``, for `planner predict`; `planner plan` chooses its
        own groups either way.

    Raises
    ------
    ModelError
        If the run is one with parameter servers.
    """
    settings, curves = settings_of(run)
    slowest = max(run.workers, key=lambda worker: worker.compute_factor)
    curve, _ = curve_of(curves)
    parts = worker_parts(run, slowest)
    number = run.num_workers
    spec: dict[str, Any] = {
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
            "update": f"{parts.update_s!r} s",
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
    }
    if with_groups:
        groups = [{"tensors": list(names)} for names in _groups(slowest, settings)]
        spec["configuration"] = {"all_reduce": {"num_devices": number, "fusion_groups": groups}}
    return spec


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
    parts = worker_parts(run, worker)
    layer_of = {tensor.name: layer for layer in worker.layers for tensor in layer.tensors}
    tensor_of = {tensor.name: tensor for layer in worker.layers for tensor in layer.tensors}
    pieces: list[_Piece] = []
    count: dict[str, int] = {}
    before_s = 0.0
    for name in (name for names in _groups(worker, settings) for name in names):
        layer, tensor = layer_of[name], tensor_of[name]
        ready_s = max(before_s, tensor.ready_offset_s * parts.stretch)
        if not pieces or pieces[-1].name.split("#")[0] != layer.name:
            count[layer.name] = count.get(layer.name, 0) + 1
            number = count[layer.name]
            pieces.append(_Piece(layer.name if number == 1 else f"{layer.name}#{number}", [], 0.0, 0.0))
        pieces[-1].tensors.append((name, tensor.size_bytes))
        pieces[-1].backward_s += ready_s - before_s
        before_s = ready_s
    _share_forward(pieces, worker, parts.before_s)
    pieces[-1].backward_s += max(parts.backward_s - before_s, 0.0)
    return pieces


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
