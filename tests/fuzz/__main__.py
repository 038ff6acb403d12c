"""``python -m tests.fuzz --inputs 100000 --seed 1 --workers 2``: changed inputs for every parser, and a table of what became of them.

One input again: ``python -m tests.fuzz --seed 1 --only "spec:17" --show``.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from fuzz_judge import Outcome, Parser, judged, made
from fuzz_parsers import PARSERS, by_name
from fuzz_run import Found, run, table, tasks_of


def main() -> int:
    """Run, print the table and every kind of defect; exit code 1 where there is one."""
    asked = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    asked.add_argument("--inputs", type=int, default=10_000)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--workers", type=int, default=1)
    asked.add_argument("--parsers", help="names, with semicolons between them; all where left out")
    asked.add_argument("--only", help="one input, PARSER:NUMBER, in this process")
    asked.add_argument("--show", action="store_true", help="with --only: print its files, too")
    given = asked.parse_args()
    if given.only:
        return _one(given.only, given.seed, is_shown=given.show)
    parsers = PARSERS if not given.parsers else [by_name()[name] for name in given.parsers.split(";")]
    begin_s = monotonic()
    for parser in parsers:  # seeds are made once, before the processes part
        made(parser, given.seed, 0)
    ready_s = monotonic()
    tasks = tasks_of(parsers, given.inputs)

    def told(found: Sequence[Found]) -> None:
        print(table(parsers, found), _defects(parsers, found), sep="\n", file=sys.stderr, flush=True)

    found, peak_bytes = run(parsers, tasks, seed=given.seed, num_workers=given.workers, told=told)
    print(table(parsers, found))
    print(
        f"\nseed {given.seed}; seeds made in {ready_s - begin_s:.0f} s, inputs in {monotonic() - ready_s:.0f} s; ",
        end="",
    )
    print(f"most memory of a process {peak_bytes / 2**20:.0f} MiB")
    for parser, one in zip(parsers, found, strict=True):
        number = sum(one.outcomes.values()) or 1
        print(
            f"{parser.name}: {one.used_s / number * 1e3:.1f} ms an input; slowest {one.slowest_s:.2f} s, number {one.slowest}"
        )
    print(_defects(parsers, found))
    return int(any(one.defects for one in found))


def _defects(parsers: Sequence[Parser], found: Sequence[Found]) -> str:
    """Every kind of defect with some of its inputs."""
    lines = []
    for parser, one in zip(parsers, found, strict=True):
        for signature, numbers in sorted(one.defects.items(), key=lambda pair: -len(pair[1])):
            lines.append(f"\nDEFECT {parser.name}: {signature}: {len(numbers)} inputs, e.g. {numbers[:5]}")
            lines += ascii(one.details.get(signature, ""))[-1500:].split("\\n")[-8:]
    return "\n".join(lines)


def _one(text: str, seed: int, *, is_shown: bool) -> int:
    name, _, number = text.rpartition(":")
    parser = by_name()[name]
    files, draw = made(parser, seed, int(number))
    if is_shown:
        for file, data in files.items():
            print(f"--- {file}, {len(data)} bytes\n{data[:20_000].decode('utf-8', errors='backslashreplace')}")
    verdict = judged(parser, files, draw)
    print(
        f"{verdict.outcome}; recognised: {verdict.is_recognised}; {verdict.used_s:.3f} s; {verdict.signature}\n{verdict.detail}"
    )
    return int(verdict.outcome is Outcome.DEFECT)


if __name__ == "__main__":
    sys.exit(main())
