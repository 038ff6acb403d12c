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

__all__ = [
    "ServerConstants",
    "busiest_link_s",
    "exchange_of",
    "link_rate_bytes_per_s",
    "message_s",
    "predict",
    "settings_of",
    "to_spec",
]

_LARGE_BYTES = 1 << 20  # from here on a transfer is as fast as the link
_SMALL_BYTES = 4096  # up to here it is as slow as a message
_LEAST_MESSAGE_S = 1e-4  # two processes of one host take as long
_HEADERS_BYTES, _FRAME_BYTES = 52, 14  # IP and TCP with time stamps, inside a frame; Ethernet's own, around it
_FINE_STEP_S, _COARSE_STEP_S = 3e-4, 1e-3
_FINE_UNTIL_S = 2.0  # of the busiest link: from here on steps grow with it; measured iterations have half of that
_SETTLING = 3  # iterations before those that count
_COUNTED = 4  # even: workers may take turns
_COUNTED_UNSTEADY = 12  # where those differ: one of them says little
_STEADY = 0.02  # by how much of an iteration they may differ


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConstants:
    """What no input of a run tells; fitted to 13 measured runs of 9 sessions, which it describes and no others.

    Attributes
    ----------
    window_share
        Of the receiver's buffer that a connection may have unacknowledged: half, as Linux holds ready for payload
        (``net.ipv4.tcp_adv_win_scale`` of 1). Kept because it fits best of 0.4 to 1.
    pause_s
        After each of which a connection without traffic halves its window. Fitted; one run, of eight
        workers that push and pull at once, sets it. It also stands in for losses, which the model leaves out: Linux
        itself halves windows after 0.2 s.
    stagger_share
        Between the first iterations of two workers, of what the busiest link needs for an iteration over the number of
        workers. Not fitted: of 1 they begin evenly spread, so that those which fall apart in use do, on links of any
        rate. From 0.5 on, the one run that tells is in the steady state that was measured.
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
    stagger_share: float = 1.0
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
    for counted in (_COUNTED, _COUNTED_UNSTEADY):
        fluid: Fluid = FairFluid(routes) if ideal else WindowFluid(routes, _transport(run, constants))
        starts_s = begins_s(exchange, routes, fluid, num_iterations=_SETTLING + counted + 1)
        periods_s = np.diff(starts_s[:, _SETTLING:], axis=1)
        iteration_time_s = float(np.median(periods_s))
        if np.ptp(periods_s) <= _STEADY * iteration_time_s:
            break
    slowest = max(exchange.workers, key=lambda worker: sum(worker.forward_s) + worker.backward_s)
    forward_s = sum(slowest.forward_s)
    breakdown_s = {
        "forward": forward_s,
        "backward": slowest.backward_s,
        "exposed_communication": iteration_time_s - forward_s - slowest.backward_s,
    }
    return RunPrediction(
        iteration_time_s=iteration_time_s,
        breakdown_s=breakdown_s,
        notes=_notes(run, starts_s, periods_s, iteration_time_s),
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
        stagger_s=constants.stagger_share * busiest_link_s(run) / run.num_workers,
    )


def link_rate_bytes_per_s(run: Run) -> float:
    """Return the payload that a link carries in a second, by the session's own curves of large transfers.

    Curves of all workers at once tell it where they share one server's link, those of one worker otherwise. Where they
    hold no large transfer, it is what full frames carry.
    """
    settings, curves = settings_of(run)
    together = (curves.push_all, curves.pull_all)
    if run.num_workers > 1 and not settings.is_co_located and all(together):
        rates = [rate for curve in together for rate in _rates(curve, run.num_workers)]
    else:
        rates = []
    rates = rates or [rate for curve in (curves.push_one, curves.pull_one) for rate in _rates(curve, 1)]
    if not rates:
        mtu_bytes = run.network.mtu_bytes
        share = max(mtu_bytes - _HEADERS_BYTES, 1) / (mtu_bytes + _FRAME_BYTES)
        return share * run.network.link_rate_bytes_per_s
    return min(float(np.median(rates)), run.network.link_rate_bytes_per_s)


def busiest_link_s(run: Run) -> float:
    """Return the seconds for which the busiest link, in its busier direction, carries payload in an iteration."""
    settings, _ = settings_of(run)
    num_workers = run.num_workers
    held = np.zeros(settings.num_servers)
    np.add.at(held, [key.server for key in settings.keys], [key.size_bytes for key in settings.keys])
    if settings.is_co_located:
        # Pushes of the other workers arrive at a server's host, and its own worker's sums of the other servers.
        most_bytes = max(float((held * (num_workers - 2)).max() + held.sum()), 0.0)
    else:
        most_bytes = max(float(held.max()) * num_workers, float(held.sum()))
    return most_bytes / link_rate_bytes_per_s(run)


def message_s(run: Run) -> float:
    """Return the seconds of a message without a payload worth naming, there and back, by the session's own curves.

    Where they hold large transfers alone, it is what these take beyond their bytes at the rate of the link.
    """
    _, curves = settings_of(run)
    points = [*curves.push_one, *curves.pull_one]
    small_s = [point.median_s for point in points if point.size_bytes <= _SMALL_BYTES]
    if small_s:
        return float(np.median(small_s))
    rate_bytes_per_s = link_rate_bytes_per_s(run)
    beyond_s = min(point.median_s - point.size_bytes / rate_bytes_per_s for point in points)
    return max(beyond_s, 2 * run.network.delay_s, _LEAST_MESSAGE_S)


def _rates(curve: Sequence[CurvePoint], num_workers: int) -> list[float]:
    """Return the rates of a curve's large transfers; none where it has none."""
    return [num_workers * point.size_bytes / point.median_s for point in curve if point.size_bytes >= _LARGE_BYTES]


def _transport(run: Run, constants: ServerConstants) -> Transport:
    """Return what the run's connections are like.

    Steps of time grow with iterations that take many of them, so that the work is bounded.
    """
    coarser = max(1.0, busiest_link_s(run) / _FINE_UNTIL_S)
    return Transport(
        window_bytes=max(constants.window_share * run.network.receive_buffer_bytes, FIRST_WINDOW_BYTES),
        pause_s=constants.pause_s,
        round_trip_s=message_s(run),
        largest_output_bytes=float(run.network.output_limit_bytes),
        fine_step_s=coarser * _FINE_STEP_S,
        coarse_step_s=coarser * _COARSE_STEP_S,
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


def _notes(run: Run, starts_s: Floats, periods_s: Floats, iteration_time_s: float) -> tuple[str, ...]:
    """Return what a reader should know about this prediction."""
    notes = []
    lag = float(np.ptp(starts_s[:, -1])) / iteration_time_s
    if lag > 0.02:
        notes.append(f"Workers fall apart: the last one begins {lag:.0%} of an iteration after the first.")
    spread = float(np.ptp(periods_s)) / iteration_time_s
    if spread > _STEADY:
        notes.append(f"Iterations differ by {spread:.0%}; the median is given.")
    if (busy_s := busiest_link_s(run)) > 5 * _FINE_UNTIL_S:
        notes.append(f"A link is busy for {busy_s:.0f} s: steps of time are coarse, and the steady state is uncertain.")
    return tuple(notes)
