"""Small files of measured all-reduce runs, made up: two layers, three tensors, round figures."""

import copy
import json
from pathlib import Path
from typing import Any

__all__ = ["run_document", "write_run"]


def _times(median_s: float, **parts: float) -> dict[str, Any]:
    """Return an iteration's figures without spread."""
    figures = {"median_s": median_s, "p10_s": median_s, "p90_s": median_s, "mean_s": median_s, "count": 20}
    return figures | parts


def _layer(name: str, forward_s: float, backward_s: float, tensors: dict[str, tuple[int, float]]) -> dict[str, Any]:
    """Return a layer; tensors are name -> bytes and seconds from the start of the backward pass."""
    rows = [
        {"name": key, "size_bytes": size, "gradient_ready_offset_s": offset_s}
        for key, (size, offset_s) in tensors.items()
    ]
    return {"name": name, "forward_time_s": forward_s, "backward_time_s": backward_s, "tensors": rows}


def _profile(factor: float) -> dict[str, Any]:
    """Return the profile of a worker: 0.1 s forward, 0.2 s backward, times its factor."""
    layers = [
        _layer("first", 0.06 * factor, 0.15 * factor, {"first.w": (4_000_000, 0.2 * factor)}),
        _layer(
            "last", 0.04 * factor, 0.05 * factor, {"last.w": (1_000_000, 0.05 * factor), "last.b": (40, 0.05 * factor)}
        ),
    ]
    totals = {"zero_grad_time_s": 0.0, "forward_time_s": 0.1 * factor, "backward_time_s": 0.2 * factor}
    return {
        "layers": layers,
        "forward_prefix_s": 0.0,
        "backward_tail_s": 0.0,
        "totals": totals | {"update_time_s": 0.0},
    }


def _point(size_bytes: int, seconds: float) -> dict[str, Any]:
    """Return a point of a curve without spread."""
    return {
        "size_bytes": size_bytes,
        "time_median_s": seconds,
        "time_p10_s": seconds,
        "time_p90_s": seconds,
        "back_to_back_mean_s": seconds,
        "repetitions": 20,
    }


def run_document(*, factors: tuple[float, ...] = (1.0, 1.0), median_s: float | None = 0.62) -> dict[str, Any]:
    """Return the file of a run: 5 MB in two buckets over links on which 1 MB takes 0.1 s, one all-reduce at a time."""
    standalone = [
        {
            "rank": factors.index(factor),
            "compute_factor": factor,
            "profile": _profile(factor),
            "single_worker_iteration": _times(
                0.3 * factor,
                forward_median_s=0.1 * factor,
                backward_median_s=0.2 * factor,
                zero_grad_median_s=0.0,
                update_median_s=0.0,
            ),
        }
        for factor in dict.fromkeys(factors)
    ]
    network = {
        "hosts": len(factors),
        "link_rate_bytes_per_s": 1e7,
        "added_one_way_delay_s": 0.0,
        "mtu_bytes": 1500,
        "gso_max_bytes": 16000,
        "tbf_burst_bytes": 18000,
        "tbf_limit_bytes": 4_000_000,
        "tcp_receive_buffer_max_bytes": 524288,
        "tcp_limit_output_bytes": 262144,
    }
    buckets = [
        {"index": 0, "size_bytes": 1_000_040, "tensors": ["last.w", "last.b"]},
        {"index": 1, "size_bytes": 4_000_000, "tensors": ["first.w"]},
    ]
    document: dict[str, Any] = {
        "schema_version": 1,
        "job_id": "made-up-cap1",
        "session_id": "made-up",
        "family": "allreduce_emulated",
        "inputs": {
            "model": {"kind": "emulated", "table": "made-up", "scale": 1},
            "total_size_bytes": 5_000_040,
            "world_size": len(factors),
            "worker_compute_factors": list(factors),
            "standalone": standalone,
            "network": network,
            "communication_time_curves": {
                "allreduce": {"isolated": [_point(10_000, 0.001), _point(1_000_000, 0.1), _point(10_000_000, 1.0)]}
            },
            "allreduce": {"bucket_cap_mb": 1, "concurrent_collectives": 1, "buckets_used": buckets},
        },
    }
    document["inputs"]["allreduce"]["ddp_logging"] = {"gradient_as_bucket_view": 1}
    if median_s is not None:
        document["results"] = {"iteration_time": _times(median_s)}
    return copy.deepcopy(document)


def write_run(folder: Path, document: dict[str, Any], name: str = "run.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(document))
    return path
