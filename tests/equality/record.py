"""Recording the answers: ``python -m tests.equality.record`` asks everything anew and writes ``answers.json``.

Questions stand in that file beside their answers; those of the gallery and of the zoo are what stands there today. A
new one is a row with its name, words, spec and an empty answer, which recording by its name fills in. With patterns
behind it, ``'hybrid-*' zoo-plan-003``, it asks these anew and keeps the rest: for a change of physics that is meant,
whose reason goes into the commit. With ``--compare`` it writes nothing and tells what differs, ties too.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.equality.asking import ANSWERS, Question, answer, asked, differences, kept, recorded

PLAN = ("plan", "question.yaml")
PREDICT = ("predict", "question.yaml")
GALLERY = Path(__file__).parents[2] / "docs/gallery"
MACHINE = {"count": 2, "devices": 8, "device": "h100-sxm", "network": "400 Gbit/s", "nics": 8, "latency": "5 us"}
REPEATED = 3  # of so many plans that are drawn, one is given back to `predict`
LONG_S = 1.5


def questions() -> Iterator[Question]:
    """Yield all questions but those that follow from an answer."""
    made = ("gallery-", "zoo-", "zoo_totals-")
    yield from (one for name, (one, _) in recorded().items() if not name.startswith(made) and "-again-" not in name)
    yield from _gallery()
    yield from _zoo()


def _gallery() -> Iterator[Question]:
    for folder in sorted(path for path in GALLERY.iterdir() if path.is_dir()):
        first = (folder / "report.txt").read_text(encoding="utf-8").partition("\n")[0]
        words = first.replace('"10 min"', "10min").split()[2:]
        export = ["--export", "rows.json"] if words[0] == "sweep" else []
        told = ("question.yaml", "README.md", "report.txt")
        files = {one.name: one.read_text(encoding="utf-8") for one in sorted(folder.iterdir()) if one.name not in told}
        spec = (folder / "question.yaml").read_text(encoding="utf-8")
        yield Question(name=f"gallery-{folder.name}", words=(*words, *export), spec=spec, files=files)


def _zoo() -> Iterator[Question]:
    """Yield what the networks that are built in hold, and a plan of each on one cluster; large ones have more of it."""
    totals = Question(name="zoo_totals-000", words=("show", "dnn"))
    yield totals
    for name, (trainable, *_) in answer(totals)["totals"].items():
        is_transformer = trainable > 2.5e8
        dnn = {"zoo": name, "global_batch": 64, "dtype": "bf16", "optimizer": "adam"}
        machine = {**MACHINE, "count": 256 if trainable > 2e11 else 32 if trainable > 2e10 else 2}
        spec = {"dnn": dnn, "cluster": {"machines": [machine]}, "objective": "iteration_time"}
        yield Question(
            name=f"zoo-{name}", words=PLAN, spec=spec | {"families": ["hybrid" if is_transformer else "all_reduce"]}
        )


def _again(question: Question, document: dict[str, Any]) -> Question:
    """Return the question what a plan's configuration costs."""
    assert isinstance(question.spec, dict), "it is drawn"
    block = {document["family"]: document["configuration"]}
    if document["substitutions"]:
        block["substitutions"] = document["substitutions"]
    spec = {key: part for key, part in question.spec.items() if key not in ("fix", "families", "constraints")}
    kind, _, number = question.name.rpartition("-")
    return Question(name=f"{kind}-again-{number}", words=PREDICT, spec={**spec, "configuration": block})


def _asked(wanted: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Ask what is wanted, and yield rows of the file."""
    for question in questions():
        if wanted and not any(fnmatchcase(question.name, pattern) for pattern in wanted):
            continue
        begin_s = time.perf_counter()
        code, document = asked(question)
        taken_s = time.perf_counter() - begin_s
        print(f"{question.name}{f': {taken_s:.1f} s' if taken_s > LONG_S else ''}", flush=True)
        yield {**question.to_row(), "answer": kept(question, code, document)}
        number = question.name.rpartition("-")[2]
        if question.words == PLAN and code == 0 and number.isdigit() and int(number) % REPEATED == 0:
            again = _again(question, document)
            if not (found := answer(again))["exit"]:  # without the pins some are no answers
                yield {**again.to_row(), "answer": found}


def _compare(wanted: Sequence[str]) -> int:
    """Ask what is recorded, tell what differs, and return 1 where something must not."""
    before = {name: row for name, row in recorded().items() if not wanted or any(fnmatchcase(name, p) for p in wanted)}
    counts = {"equal": 0, "ties": 0, "WRONG": 0}
    for name, (question, was) in before.items():
        hard, soft = differences(was, answer(question))
        outcome = "WRONG" if hard else "ties" if soft else "equal"
        counts[outcome] += 1
        if hard or soft:
            print(f"{name}: {outcome}: {'; '.join(hard or soft)}", flush=True)
    print(", ".join(f"{number} {outcome}" for outcome, number in counts.items()))
    return int(counts["WRONG"] > 0)


def main(arguments: Sequence[str]) -> int:
    """Record, or compare."""
    wanted = [word for word in arguments if word != "--compare"]
    if "--compare" in arguments:
        return _compare(wanted)
    old = {row["name"]: row for row in json.loads(ANSWERS.read_text(encoding="utf-8"))} if wanted else {}
    new = old | {row["name"]: row for row in _asked(wanted)}
    lines = [json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False) for row in new.values()]
    ANSWERS.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
