"""What links reach that nobody measured: shares of their rates, from every source that shows them.

A source is a testbed; its figure is the geometric mean over its networks of layers, or sessions. What ships is the
geometric mean over sources. What a source would be told by the others stands beside it: that is the error to expect
elsewhere. The bound of TCP has one source, so that nothing tells how far it carries.

What RDMA and NVLink reach is fitted to transformers (:mod:`research.transformer_fit`). Written:
``planner/data/links_reached.yaml``; the tables stand in ``docs/accuracy.md``.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median

from planner.calibration.run_files import read_run
from planner.calibration.runs import all_reduce_of, curve_of
from planner.case.run import expanded
from planner.errors import PlannerError, SpecError
from research import ROOT
from research.measured.cases import MeasuredCase, measured_cases

__all__ = ["Sources", "links_section", "links_text", "sources"]

_FILE = ROOT / "planner" / "data" / "links_reached.yaml"
_PCIE_3, _FAST = 15.75e9, 12.5e9  # of both testbeds, bytes a second: inside their machines, and of 100 Gbps
_RUNS = "$PLANNER_DATA/measurements"
_TESTBED = ("measured-hkbu-resnet50", "measured-hkbu-bert-base")

Sources = Mapping[str, Mapping[str, float]]

_HEAD = """\
## Links

What links reach where a question gives no efficiency, as measured by each source: a testbed, or the sessions of
measured runs. The geometric mean ships (`planner/data/links_reached.yaml`); *others* is that of the other sources, and
*off* by how much they are wrong about this one. RDMA between machines with NVLink, and NVLink, reach what was fitted to
[transformers](accuracy_transformers.md), on cards of 100 Gbit/s and more. No source has RDMA on narrower cards: there
it is taken to reach no less than TCP on the same cards, and its band is that of both transports. TCP on 100 Gbps is
TCP/IP over the InfiniBand cards of one testbed.
`python -m research.links` prints this table.

"""
_TITLES = {
    "tcp": "TCP, share of 10 Gbps and less",
    "tcp_bytes_per_s": "TCP, most of a network card, GB/s",
    "pcie": "devices on PCIe, share of its rate",
}
_SCALES = {"tcp": 1.0, "tcp_bytes_per_s": 1e-9, "pcie": 1.0}


def sources(results: Iterable[MeasuredCase]) -> Sources:
    """Return figure -> source -> what it shows, of the cases and of measured runs.

    Raises
    ------
    SpecError
        If measurements are missing, or one cannot be read.
    """
    found = list(results)
    if skipped := [f"{result.name}: {result.skipped}." for result in found if result.skipped]:
        raise SpecError("\n".join([*skipped, "Set PLANNER_DATA to the folder of measured data."]))
    fitted_in = {result.name: result.fitted for result in found}
    fits, byteps = [fitted_in[name] for name in _TESTBED], fitted_in["measured-bps"]

    def testbed(name: str) -> float:
        return geometric_mean(fitted[name] for fitted in fits)

    return {
        "tcp": {
            "NCCL, HKBU": testbed("share of 10GbE with TCP/IP"),
            "BytePS": byteps["share of 10 Gbps TCP"],
            "gloo, measured runs": geometric_mean(_session_shares().values()),
        },
        "tcp_bytes_per_s": {"NCCL, HKBU": _FAST * testbed("share of 100GbE with TCP/IP")},
        "pcie": {
            "NCCL, HKBU": testbed("share of the rate inside"),
            "BytePS": byteps["share of 100 Gbps RDMA"] * _FAST / _PCIE_3,
        },
    }


def links_text(found: Sources) -> str:
    """Return ``planner/data/links_reached.yaml``."""
    tcp, most, pcie = (geometric_mean(found[name].values()) for name in _TITLES)
    return (
        "# What links reach where nobody measured them: shares of their rates; written by python -m research.links.\n"
        f"tcp: {{share: {tcp:.2g}, most_bytes_per_s: {most:.2e}}}\n"
        f"pcie: {{share: {pcie:.2g}}}\n"
    )


def links_section(found: Sources) -> str:
    """Return the part of the page."""
    lines = ["| figure | source | measured | others | off |", "| --- | --- | --- | --- | --- |"]
    for name, by_source in found.items():
        for source, value in by_source.items():
            others = [one for other, one in by_source.items() if other != source]
            cells = [_TITLES[name], source, f"{_SCALES[name] * value:.3g}"]
            cells += (
                [f"{geometric_mean(others):.3g}", f"{geometric_mean(others) / value - 1:+.0%}"] if others else ["", ""]
            )
            lines.append(f"| {' | '.join(cells)} |")
    return _HEAD + "\n".join(lines) + "\n"


def _session_shares() -> dict[str, float]:
    """Return the share of a link's rate that large all-reduces reach, by session."""
    found: dict[str, list[float]] = {}
    for path in sorted(Path(expanded(_RUNS)).glob("*ar-*.json")):
        run = read_run(path)
        _, per_byte_s = curve_of(all_reduce_of(run)[1])
        rings = 2 * (run.num_workers - 1) / run.num_workers
        found.setdefault(run.session, []).append(rings / per_byte_s / run.network.link_rate_bytes_per_s)
    return {session: median(shares) for session, shares in found.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, and write the figures where that is asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.links", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {_FILE.name} anew")
    given = parser.parse_args(arguments)
    try:
        found = sources(measured_cases())
    except PlannerError as error:
        print(error, file=sys.stderr)
        return 2
    print(links_section(found))
    if given.write:
        _FILE.write_text(links_text(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
