"""A run with parameter servers as an ordinary question: the spec that `planner predict` answers.

The family ``parameter_server`` waits for everybody between pushes and pulls, and pulls after the last push. The spec
has a group of machines for every compute factor. Left out: pulls beside pushes, workers that fall apart, connections
that share a link unequally, what messages and keys cost; slices of a tensor are as large as one another.
"""

from collections.abc import Sequence
from typing import Any

from planner.calibration.runs.all_reduce import worker_parts
from planner.calibration.runs.parameter_server import link_rate_bytes_per_s, message_s, settings_of
from planner.calibration.runs.run_facts import Overlap, Run, RunWorker, ServerSettings

__all__ = ["to_spec"]

_ELEMENT_BYTES = 4  # fp32, as all runs


def to_spec(run: Run) -> dict[str, Any]:
    """Return the run as plain data of a spec, for :func:`planner.load`, or to be written as JSON or YAML.

    Raises
    ------
    ModelError
        If the run is one with all-reduces.
    """
    settings, _ = settings_of(run)
    groups = _groups(run, settings)
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
            "strategy": "cntk" if settings.overlap is Overlap.SEQUENTIAL else "mxnet",
            "split_tensors": _is_sliced(settings),
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
                "placement": "sliced" if _is_sliced(settings) else {key.tensor: key.server for key in settings.keys},
            }
        },
    }


def _is_sliced(settings: ServerSettings) -> bool:
    """Whether tensors lie on several servers."""
    return len({key.tensor for key in settings.keys}) < len(settings.keys)


def _groups(run: Run, settings: ServerSettings) -> list[tuple[str, int, int]]:
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
