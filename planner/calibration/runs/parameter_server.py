"""Predict a run with parameter servers from its inputs: profiles alone, links alone, and where every tensor lies.

Nothing of the results is read. The physics stand in :mod:`planner.models.server_fluid_exchange` (who waits for whom)
and :mod:`planner.models.server_fluid_windows` (how connections share links); here the file's figures become theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.calibration.runs.all_reduce import worker_parts
from planner.calibration.runs.run_facts import (
    CurvePoint,
    Overlap,
    Run,
    RunPrediction,
    RunWorker,
    ServerCurves,
    ServerSettings,
)
from planner.cost import Floats
from planner.errors import ModelError
from planner.models.server_fluid import FairFluid, Fluid
from planner.models.server_fluid_exchange import Exchange, ExchangeWorker, begins_s, routes_of
from planner.models.server_fluid_windows import FIRST_WINDOW_BYTES, Transport, WindowFluid

__all__ = ["ServerConstants", "exchange_of", "link_rate_bytes_per_s", "message_s", "predict", "settings_of", "to_spec"]

_LARGE_BYTES = 1 << 20  # from here on a transfer is as fast as the link
_SMALL_BYTES = 4096  # up to here it is as slow as a message
_SETTLING = 3  # iterations before those that count
_COUNTED = 4  # even: workers may take turns


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConstants:
    """What no input of a run tells; fitted to 13 measured runs of 9 sessions, which it describes and no others.

    Attributes
    ----------
    window_share
        Of the receiver's buffer that a connection may have unacknowledged: half, as Linux holds ready for payload
        (``net.ipv4.tcp_adv_win_scale`` of 1). Kept because it fits best of 0.4 to 1.
    pause_s
        After each of which a connection without traffic halves its window. Fitted, 0.03 to 0.05; one run, of eight
        workers that push and pull at once, sets it. It also stands in for losses, which the model leaves out: Linux
        itself halves windows after 0.2 s.
    stagger_s
        Between the first iterations of two workers: enough that those which fall apart in use do. From 0.12 on, the
        one run that tells is in the steady state that was measured.
    key_s
        Of a worker's own time for every key that it pushes, whose backward pass it lengthens. Fitted, 0 to 60e-6.
    copy_s_per_byte
        Of a worker's own time for every byte that it pushes, where layers compute; sleeping ones lose none. One run
        computes; its backward passes were 0.8e-9 and 0.9e-9 longer.
    header_bytes
        Of a message: Ethernet, IP and TCP, for one that fills no packet.
    """

    window_share: float = 0.5
    pause_s: float = 0.04
    stagger_s: float = 0.2
    key_s: float = 45e-6
    copy_s_per_byte: float = 1e-9
    header_bytes: float = 66.0


def predict(run: Run, constants: ServerConstants | None = None, *, ideal: bool = False) -> RunPrediction:
    """Return the seconds of one iteration of a run with parameter servers and what they consist of.

    Parameters
    ----------
    run
        Its inputs are read, and nothing else.
    constants
        What no input tells; those fitted to measured runs unless given.
    ideal
        Share links max-min fairly, as if connections had no windows and queues.

    Raises
    ------
    ModelError
        If the run is one with all-reduces.
    """
    constants = constants or ServerConstants()
    exchange = exchange_of(run, constants)
    routes = routes_of(exchange, link_rate_bytes_per_s(run))
    fluid: Fluid = FairFluid(routes) if ideal else WindowFluid(routes, _transport(run, constants))
    starts_s = begins_s(exchange, routes, fluid, num_iterations=_SETTLING + _COUNTED + 1)
    periods_s = np.diff(starts_s[:, _SETTLING:], axis=1)
    iteration_time_s = float(np.median(periods_s))
    slowest = max(exchange.workers, key=lambda worker: sum(worker.forward_s) + worker.backward_s)
    forward_s = sum(slowest.forward_s)
    breakdown_s = {
        "forward": forward_s,
        "backward": slowest.backward_s,
        "exposed_communication": iteration_time_s - forward_s - slowest.backward_s,
    }
    return RunPrediction(
        iteration_time_s=iteration_time_s, breakdown_s=breakdown_s, notes=_notes(starts_s, periods_s, iteration_time_s)
    )


def to_spec(run: Run) -> dict[str, Any]:
    """Return the run as an ordinary question; see :mod:`planner.calibration.runs.parameter_server_spec`."""
    # Imported here, since that module reads rates and settings from this one.
    from planner.calibration.runs import parameter_server_spec  # noqa: PLC0415

    return parameter_server_spec.to_spec(run)


def exchange_of(run: Run, constants: ServerConstants) -> Exchange:
    """Return what the run exchanges, and when it may."""
    settings, _ = settings_of(run)
    places = {tensor.name: index for index, layer in enumerate(run.workers[0].layers) for tensor in layer.tensors}
    message = message_s(run)
    return Exchange(
        workers=tuple(_worker(run, worker, settings, constants) for worker in run.workers),
        key_bytes=tuple(float(key.size_bytes) for key in settings.keys),
        key_server=tuple(key.server for key in settings.keys),
        key_layer=tuple(places[key.tensor] for key in settings.keys),
        num_servers=settings.num_servers,
        is_co_located=settings.is_co_located,
        pushes_early=settings.overlap is not Overlap.SEQUENTIAL,
        pulls_early=settings.overlap is Overlap.PUSH_PULL,
        has_barrier=settings.has_barrier,
        header_bytes=constants.header_bytes,
        latency_s=message / 2,
        # A server's threads run one at a time: handing over a sum takes it what a small message takes, less the way.
        hand_over_s=max(message - 2 * run.network.delay_s, 0.0),
        stagger_s=constants.stagger_s,
    )


def link_rate_bytes_per_s(run: Run) -> float:
    """Return the payload that a link carries in a second, by the session's own curves of large transfers.

    Curves of all workers at once tell it where they share one server's link, those of one worker otherwise.
    """
    settings, curves = settings_of(run)
    together = (curves.push_all, curves.pull_all)
    if run.num_workers > 1 and not settings.is_co_located and all(together):
        rates = [rate for curve in together for rate in _rates(curve, run.num_workers)]
    else:
        rates = [rate for curve in (curves.push_one, curves.pull_one) for rate in _rates(curve, 1)]
    return min(float(np.median(rates)), run.network.link_rate_bytes_per_s)


def message_s(run: Run) -> float:
    """Return the seconds of a message without a payload worth naming, there and back, by the session's own curves."""
    _, curves = settings_of(run)
    points = [*curves.push_one, *curves.pull_one]
    most = max(_SMALL_BYTES, min(point.size_bytes for point in points))
    return float(np.median([point.median_s for point in points if point.size_bytes <= most]))


def _rates(curve: Sequence[CurvePoint], num_workers: int) -> list[float]:
    """Return the rates of a curve's large transfers."""
    least = min(_LARGE_BYTES, max(point.size_bytes for point in curve))
    return [num_workers * point.size_bytes / point.median_s for point in curve if point.size_bytes >= least]


def _transport(run: Run, constants: ServerConstants) -> Transport:
    """Return what the run's connections are like."""
    return Transport(
        window_bytes=max(constants.window_share * run.network.receive_buffer_bytes, FIRST_WINDOW_BYTES),
        pause_s=constants.pause_s,
        round_trip_s=message_s(run),
        largest_output_bytes=float(run.network.output_limit_bytes),
    )


def _worker(run: Run, worker: RunWorker, settings: ServerSettings, constants: ServerConstants) -> ExchangeWorker:
    """Return one worker, its profile stretched to whole iterations and to what pushing costs it."""
    parts = worker_parts(run, worker)
    profiled_s = sum(layer.backward_s for layer in worker.layers)
    backward_s = profiled_s * parts.stretch + constants.key_s * len(settings.keys)
    if run.family.is_real:
        backward_s += constants.copy_s_per_byte * run.total_size_bytes
    ready_s = {tensor.name: tensor.ready_offset_s for layer in worker.layers for tensor in layer.tensors}
    ahead = _ratio(parts.before_s, sum(layer.forward_s for layer in worker.layers))
    back = _ratio(backward_s, profiled_s)
    return ExchangeWorker(
        forward_s=tuple(ahead * layer.forward_s for layer in worker.layers),
        backward_s=backward_s,
        ready_s=tuple(back * ready_s[key.tensor] for key in settings.keys),
    )


def _ratio(whole_s: float, profiled_s: float) -> float:
    """Return by how much a profile is stretched; a profile of no seconds stays as it is."""
    return whole_s / profiled_s if profiled_s > 0 else 1.0


def settings_of(run: Run) -> tuple[ServerSettings, ServerCurves]:
    """Return what a run with parameter servers has, or refuse another one."""
    if run.server is None or run.server_curves is None:
        raise ModelError(f"{run.job_id} is a run of all-reduces; it has no parameter servers to predict.")
    return run.server, run.server_curves


def _notes(starts_s: Floats, periods_s: Floats, iteration_time_s: float) -> tuple[str, ...]:
    """Return what a reader should know about this prediction."""
    notes = []
    lag = float(np.ptp(starts_s[:, -1])) / iteration_time_s
    if lag > 0.02:
        notes.append(f"Workers fall apart: the last one begins {lag:.0%} of an iteration after the first.")
    spread = float(np.ptp(periods_s)) / iteration_time_s
    if spread > 0.02:
        notes.append(f"Iterations differ by {spread:.0%}; the median is given.")
    return tuple(notes)
