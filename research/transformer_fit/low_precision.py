"""What products in eight and four bits reach, and what launching costs with them: fitted on top of the other figures.

``python -m research.transformer_fit.low_precision`` prints the errors, with ``--write`` into
docs/accuracy_transformers.md and planner/data/low_precision.yaml. The figures of :mod:`research.transformer_fit.fit`
stay as they are; eleven are fitted here, each with a prior, to the rows of
:mod:`research.transformer_fit.low_rows`. Rows of one network on one device count together for the root of their number.
Rows in bf16 of the same tables are predicted, and had no part in any fit.

Programs of two eras: from container 26.06 on recipes of gated experts capture a step's kernels and do what experts move
in their products' kernel; before, and in 26.06.01 for GPT-OSS, which lost that for a month, each expert on a device had
kernels of its own. Which rows are of which era is read off container and recipe; of that one row alone off its step,
which took 1.6 times those of the containers before and behind it.

Not fitted, but predicted: rows of torchtitan on a B200 whose power was limited to what nobody tells, and rows of LoRA,
whose adapters no row describes.
What CUDA graphs leave of a launch floor is measured: a layer of 512 tokens of width 1,024 took 1.34 ms on an H100
launched kernel by kernel, and 0.27 ms by a graph, of which part is the device's own.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from planner.cost import Floats
from planner.data.devices import device
from planner.data.fits import transformer_rates
from planner.models.compute import Constants, DeviceRates, Software, device_shares
from planner.models.low_precision import NUMBER_TYPES, LowFigures, fuses_experts
from planner.models.programs import PROGRAMS
from planner.models.transformer_interval import LayerFigures
from planner.models.transformer_time import iteration_times
from research import ROOT, page_with
from research.bands import band, coverage
from research.transformer_fit.fit import Prior, parameters_text
from research.transformer_fit.low_rows import LowRow, read_low_rows, unread

__all__ = ["PRIORS", "figures_of", "fit", "is_fitted", "predicted_s"]

_PAGE = ROOT / "docs" / "accuracy_transformers.md"
_PART = "research/transformer_fit/low_precision.py"
_FILE = ROOT / "planner" / "data" / "low_precision.yaml"
_COMMAND = "python -m research.transformer_fit.low_precision --write"
_HOPPER = ("h100-sxm", "h200-sxm", "h800-sxm", "gh200-96gb")
_BLACKWELL = ("b200-sxm", "b300-sxm", "gb200", "gb300")
_TITAN = ("torchtitan", "torchtitan-eager")
_TENSORWISE = "torchtitan-tensorwise"  # with one scale for a tensor, which its files no longer ask for
_GRAPH_LAUNCH_RATIO = 0.2
_SCALE = 0.05  # error from which on a row counts less than quadratically
_PRIOR_WEIGHT = 0.5
_STEP = 1e-3
_SLOPE = 0.02
_EVALUATIONS = 12

PRIORS: Mapping[str, Prior] = {
    "fp8_hopper": Prior(start=0.62, low=0.4, high=0.85, width=0.1, source="cuBLAS on an H100: 0.59 to 0.71"),
    "fp8_blackwell": Prior(start=0.6, low=0.35, high=0.9, width=0.2, source="as on Hopper"),
    "fp4_blackwell": Prior(start=0.45, low=0.25, high=0.8, width=0.3, source="below that of fp8: the same loads"),
    "startup_ratio": Prior(start=0.5, low=0.05, high=1.2, width=0.5, source="half the bytes; persistent kernels: less"),
    "routed_share": Prior(start=0.75, low=0.3, high=1.0, width=0.3, source="grouped on an H100: 0.6 to 0.95 of one"),
    "cast_ratio": Prior(start=0.8, low=0.15, high=2, width=0.4, source="counted: 1; some are done by other kernels"),
    "graph_moved_ratio": Prior(start=0.5, low=0.05, high=1.2, width=0.7, source="activations in products' kernels"),
    "floor_ratio": Prior(start=2, low=1, high=5, width=0.5, source="router, permutations, exchange: more kernels"),
    "expert_launch_s": Prior(start=3e-4, low=1e-6, high=2e-3, width=1, source="some tens of kernels an expert"),
    "torchtitan": Prior(start=0.85, low=0.4, high=1.1, width=0.2, source="torch.compile's casts, PyTorch's products"),
    "rowwise": Prior(
        start=0.8, low=0.4, high=1.0, width=0.15, source="torchtitan 7a04053: 8B, 5,760 to 6,424 and 7,186"
    ),
}
_COMMON = ("startup_ratio", "routed_share", "cast_ratio", "graph_moved_ratio", "floor_ratio", "expert_launch_s")


def figures_of(parameters: Mapping[str, float]) -> LowFigures:
    """Return what ships of some parameters."""
    bf16 = transformer_rates()["devices"]
    shares = {
        "fp8": {
            **dict.fromkeys(_HOPPER, parameters["fp8_hopper"]),
            **dict.fromkeys(_BLACKWELL, parameters["fp8_blackwell"]),
        },
        "fp4": dict.fromkeys(_BLACKWELL, parameters["fp4_blackwell"]),
    }
    # Devices without steps: over bf16's share as on Hopper, and of four bits as these are to eight on Blackwell.
    ratio = min(1.0, parameters["fp8_hopper"] / bf16["h100-sxm"]["product_efficiency"])
    return LowFigures(
        shares=shares,
        ratios={"fp8": ratio, "fp4": ratio * min(1.0, parameters["fp4_blackwell"] / parameters["fp8_blackwell"])},
        # A plan for torchtitan trains with a scale for each row.
        programs={
            **dict.fromkeys(_TITAN, parameters["torchtitan"] * parameters["rowwise"]),
            _TENSORWISE: parameters["torchtitan"],
        },
        graph_launch_ratio=_GRAPH_LAUNCH_RATIO,
        **{name: parameters[name] for name in _COMMON},
    )


def has_graphs(one: LowRow) -> bool:
    """Return whether a row's kernels are captured, those of experts as far as the program can."""
    return one.graphs == "whole"


def is_fitted(one: LowRow) -> bool:
    """Return whether a row is told to a fit."""
    is_limited = one.row.software in _TITAN and one.row.device == "b200-sxm"
    return one.low is not None and not is_limited and not one.is_lora


_Memory = dict[tuple[object, ...], float]


def predicted_s(rows: Sequence[LowRow], figures: LowFigures, ratios: _Memory | None = None) -> Floats:
    """Return the seconds of every row.

    ``ratios``: of rows whose schedule was played the seconds over those by its bound, kept between calls: a fit plays
    each once.
    """
    known: _Memory = {}
    found = [_seconds(one, figures, known, ratios) for one in rows]
    reference = next((index for index, one in enumerate(rows) if one.is_reference), None)
    if reference is not None:  # how much slower a device of limited power was
        slower = rows[reference].row.iteration_s / found[reference]
        found = [
            seconds * (slower if one.row.software in _TITAN and one.row.device == "b200-sxm" else 1.0)
            for one, seconds in zip(rows, found, strict=True)
        ]
    return np.array(found)


def _seconds(one: LowRow, figures: LowFigures, known: _Memory, ratios: _Memory | None) -> float:
    """Return the seconds of a row; equal ones are computed once."""
    row, fitted, is_captured = one.row, transformer_rates(), has_graphs(one)
    is_fused = fuses_experts(row.transformer, has_graphs=is_captured)
    same = (one.wide_layers, one.is_tensorwise, tuple(row.device_figures.items()), row.sends_each, row.has_hybrid)
    key = (row.transformer, row.device, tuple(sorted(row.layout.items())), one.low, is_captured, row.software, *same)
    if key in known:
        return known[key]
    what = device(row.device)
    rates = DeviceRates.of(what, "bf16", device_shares(what, "bf16", fitted))
    software = row.told(Software(name=row.software, **fitted["software"][row.software]))
    if one.low is not None:
        low = figures.products(
            what,
            rates.product_efficiency,
            one.low,
            program=_TENSORWISE if one.is_tensorwise else row.software,
            has_fused_experts=is_fused,
            wide_share=one.wide_layers / row.transformer.num_layers,
        )
        if row.device_figures:
            limited = row.device_figures["peak_flop_per_s"] / rates.peak_flop_per_s
            low = replace(low, peak_flop_per_s=low.peak_flop_per_s * limited)
        kind = NUMBER_TYPES[one.low]
        rates = replace(rates, low=low)
        software = replace(software, optimizer_bytes=software.optimizer_bytes + kind.weight_cast_bytes)
        if one.is_tensorwise or PROGRAMS[row.software].gathers_low:
            software = replace(software, weight_bytes=kind.gathered_weight_bytes, gathered_bytes=kind.gathered_bytes)
    launched = figures.launching(has_graphs=is_captured, has_fused_experts=is_fused, is_low=one.low is not None)
    software = replace(software, **launched)  # type: ignore[arg-type]  # fields by their names
    rates = replace(rates, **row.device_figures)  # type: ignore[arg-type]  # fields by their names

    def step_s(*, is_exact: bool) -> float:
        parts = iteration_times(
            LayerFigures(
                transformer=row.transformer,
                tiers=row.tiers,
                rates=rates,
                software=software,
                constants=Constants(**fitted["constants"]),
            ),
            row.layouts(),
            is_exact=is_exact,
        )
        return float(parts["total"][0])

    if ratios is None:
        known[key] = step_s(is_exact=True)
    else:
        bound = step_s(is_exact=False)
        if key not in ratios:
            ratios[key] = step_s(is_exact=True) / bound
        known[key] = bound * ratios[key]
    return known[key]


def fit(rows: Sequence[LowRow], near: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the parameters that fit rows best; ``near``: where to begin, if not at the priors."""
    told, ratios = [one for one in rows if is_fitted(one)], _Memory()

    def logs_of(logs: Floats) -> Floats:
        return np.log(predicted_s(told, figures_of(_named(logs)), ratios))

    start = [prior.start for prior in PRIORS.values()] if near is None else [near[name] for name in PRIORS]
    return _named(_least(told, logs_of, np.log(start), _EVALUATIONS))


def _named(logs: Floats) -> dict[str, float]:
    """Return parameters by name, of their logarithms."""
    return {name: float(f"{value:.4g}") for name, value in zip(PRIORS, np.exp(logs), strict=True)}


def _least(rows: Sequence[LowRow], logs_of: Callable[[Floats], Floats], start: Floats, evaluations: int) -> Floats:
    """Return the logarithms of the parameters whose errors, with those of their priors, are least."""
    from scipy.optimize import least_squares  # noqa: PLC0415  # late: only a fit pays for it

    first, low, high, width = (
        np.array([getattr(prior, key) for prior in PRIORS.values()]) for key in ("start", "low", "high", "width")
    )
    measured, root = np.log([one.row.iteration_s for one in rows]), _roots(rows)

    def residuals(logs: Floats) -> Floats:
        error = (logs_of(logs) - measured) / _SCALE
        robust = np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1))
        return np.concatenate([root * robust, _PRIOR_WEIGHT * (logs - np.log(first)) / width])

    bounds = (np.log(low) - 1e-9, np.log(high) + 1e-9)
    start = np.clip(start, *bounds)
    done = least_squares(residuals, start, bounds=bounds, x_scale=width, max_nfev=evaluations, diff_step=[_STEP])
    return np.asarray(done.x)


def _roots(rows: Sequence[LowRow]) -> Floats:
    """Return the root of the weight of each row: one over how many there are of its network and device."""
    counts = Counter((one.model, one.row.device) for one in rows)
    return np.array([counts[one.model, one.row.device] ** -0.5 for one in rows])


def errors_of(rows: Sequence[LowRow], parameters: Mapping[str, float]) -> Floats:
    """Return predicted over measured, less 1, of every row."""
    measured = np.array([one.row.iteration_s for one in rows])
    return np.asarray(predicted_s(rows, figures_of(parameters)) / measured - 1)


def left_out_errors(rows: Sequence[LowRow], parameters: Mapping[str, float], of: Sequence[str]) -> Floats:
    """Return the errors of rows, from fits that saw none of the same name; ``of``: the name of each row.

    Such a fit is near that of all rows: logarithms of seconds are taken to be straight in those of the parameters
    between both; the rows that were left out are then predicted as they are.
    """
    centre, ratios = np.log([parameters[name] for name in PRIORS]), _Memory()
    told = [index for index, one in enumerate(rows) if is_fitted(one)]

    def logs_of(logs: Floats) -> Floats:
        figures = figures_of(dict(zip(PRIORS, np.exp(logs).tolist(), strict=True)))
        return np.log(predicted_s([rows[index] for index in told], figures, ratios))

    known, steps = logs_of(centre), _SLOPE * np.eye(len(centre))
    slopes = np.stack([(logs_of(centre + step) - logs_of(centre - step)) / (2 * _SLOPE) for step in steps], axis=1)
    errors = np.full(len(rows), np.nan)
    for name in dict.fromkeys(of):
        inside = [index for index, one in enumerate(of) if one == name]
        kept = [place for place, index in enumerate(told) if of[index] != name]

        def straight(logs: Floats, kept: Sequence[int] = tuple(kept)) -> Floats:
            return np.asarray(known[kept,] + slopes[kept,] @ (logs - centre))

        found = _named(_least([rows[told[place]] for place in kept], straight, centre, 100 * _EVALUATIONS))
        own = [rows[index] for index in inside]
        references = [one for one in rows if one.is_reference and one not in own]
        errors[inside] = errors_of([*own, *references], found)[: len(own)]
    return errors


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.transformer_fit.low_precision", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("PLANNER_DATA"), help="folder of measured data")
    parser.add_argument("--write", action="store_true", help=f"write {_FILE.name}, and the table of {_PAGE.name}")
    parser.add_argument("--quick", action="store_true", help="leave nothing out: no check on unseen rows, no band")
    given = parser.parse_args(arguments)
    if given.data is None or not (given.data / "llm" / "open.csv").is_file():
        print("no measured data: name their folder by --data or PLANNER_DATA.", file=sys.stderr)
        return 2
    rows = read_low_rows(given.data)
    parameters = fit(rows)
    ways = {"fitted": errors_of(rows, parameters)}
    if not given.quick:
        ways["network left out"] = left_out_errors(rows, parameters, [_network_of(one) for one in rows])
        ways["container left out"] = left_out_errors(rows, parameters, [one.container for one in rows])
    text = _summary(rows, ways, unread(given.data))
    print(parameters_text(parameters, PRIORS), text, _table(rows, ways), sep="\n\n")
    if given.write:
        page = _PAGE.read_text(encoding="utf-8")
        _PAGE.write_text(page_with(page, _PART, text), encoding="utf-8")
        _FILE.write_text(_yaml(parameters, rows, ways), encoding="utf-8")
    return 0


def _network_of(one: LowRow) -> str:
    name = one.model.replace(" ", "").replace("_", "").replace("-", "").lower()
    return {"llama3.18b": "llama38b", "llama3.170b": "llama370b", "llama270b": "llama370b"}.get(name, name)


def _summary(rows: Sequence[LowRow], ways: Mapping[str, Floats], missing: Mapping[str, int]) -> str:
    """Return the mean errors of kinds of rows, and which rows cannot be asked."""
    told = np.array([is_fitted(one) for one in rows])
    trays = np.array([one.row.device in ("gb200", "gb300") for one in rows])
    captured = np.array([has_graphs(one) for one in rows])
    experts = np.array([one.row.transformer.experts is not None for one in rows])
    kinds = {
        "eight or four bits": told,
        "of these on GB200 and GB300": told & trays,
        "of these there, captured": told & trays & captured,
        "of these with experts": told & experts,
        "of these without": told & ~experts,
        "bf16 of the same tables, no part of any fit": np.array([not one.low and not one.is_reference for one in rows]),
        "asked, not told to a fit": np.array([bool(one.low) and not is_fitted(one) for one in rows]),
    }
    lines = [f"| rows | number | {' | '.join(f'{way}: mean (bias)' for way in ways)} |"]
    lines.append(f"|---|---|{'---|' * len(ways)}")
    for name, chosen in kinds.items():
        if chosen.any():
            cells = [f"{np.abs(one[chosen]).mean():.1%} ({one[chosen].mean():+.1%})" for one in ways.values()]
            lines.append(f"| {name} | {chosen.sum()} | {' | '.join(cells)} |")
    if missing:
        named = ", ".join(f"{number} of {name}" for name, number in missing.items())
        lines += ["", f"Rows of networks that are not known here: {named}."]
    return "\n".join(lines)


def _table(rows: Sequence[LowRow], ways: Mapping[str, Floats]) -> str:
    """Return the errors of each network on each device in each type."""
    lines = [f"| network | device | type | rows | {' | '.join(f'{way}: mean, largest' for way in ways)} |"]
    lines.append(f"|---|---|---|---|{'---|' * len(ways)}")
    names = [(one.model, one.row.device, " ".join(dict.fromkeys(one.low or ("bf16",)))) for one in rows]
    for key in dict.fromkeys(names):
        chosen = np.array([one == key for one in names])
        cells = [f"{np.abs(one[chosen]).mean():.1%}, {np.abs(one[chosen]).max():.1%}" for one in ways.values()]
        lines.append(f"| {' | '.join(key)} | {chosen.sum()} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _yaml(parameters: Mapping[str, float], rows: Sequence[LowRow], ways: Mapping[str, Floats]) -> str:
    figures = figures_of(parameters)

    def listed(values: Mapping[str, float]) -> str:
        return ", ".join(f"{name}: {float(f'{value:.4g}')!r}" for name, value in values.items())

    common = {**{name: parameters[name] for name in _COMMON}, "graph_launch_ratio": figures.graph_launch_ratio}
    lines = [
        "# Fitted figures of products in eight and four bits; models/low_precision.py says what they mean.",
        f"# Written by: {_COMMAND}",
        "shares:",
        *(f"  {name}: {{{listed(shares)}}}" for name, shares in figures.shares.items()),
        f"ratios: {{{listed(figures.ratios)}}}",
        f"programs: {{{listed(figures.programs)}}}",
        f"common: {{{listed(common)}}}",
    ]
    if (left := ways.get("network left out")) is not None:
        told: dict[str, list[float]] = {}
        for one, error in zip(rows, left.tolist(), strict=True):
            if is_fitted(one):
                told.setdefault(_network_of(one), []).append(float(np.log1p(error)))
        logs = {name: [float(np.mean(each))] for name, each in told.items()}
        low, high = band([mean for (mean,) in logs.values()])
        lines += [
            "# Of measured / predicted - 1 of networks that a fit did not see, each by the mean of its rows; coverage",
            "# over other networks.",
            f"band: {{low: {low:.3f}, high: {high:.3f}, coverage: {coverage(logs):.2f}, networks: {len(logs)}}}",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
