"""What a viewer would draw wrongly, found from a trace's JSON alone; and what is on its rows."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

__all__ = ["by_row", "end_s", "faults_of", "spans_of", "sum_s"]

_SAME_US = 1e-4
Event = dict[str, Any]


def faults_of(document: Mapping[str, Any]) -> list[str]:
    """Faults by the rules of the Trace Event Format."""
    events = json.loads(json.dumps(document, allow_nan=False))["traceEvents"]
    metadata = [event for event in events if event["ph"] == "M"]
    rows = {(event["pid"], event["tid"]) for event in metadata if event["name"] == "thread_name"}
    processes = {event["pid"] for event in metadata if event["name"] == "process_name"}
    timed = [event for event in events if event["ph"] != "M"]
    faults = [f"unknown phase {event['ph']}" for event in timed if event["ph"] not in "XsfC"]
    faults += [f"{event['name']}: no process" for event in timed if event["pid"] not in processes]
    on_rows = [event for event in timed if event["ph"] != "C"]
    faults += [f"{event['name']}: no row" for event in on_rows if (event["pid"], event["tid"]) not in rows]
    faults += ["not sorted" for one, other in pairwise(timed) if other["ts"] < one["ts"]]
    faults += ["metadata behind events"] * (events[: len(metadata)] != metadata)
    numbers = Counter(event["args"]["name"] for event in metadata if event["name"] == "thread_name")
    faults += [f"two rows {name}" for name, number in numbers.items() if number > 1]
    slices = defaultdict(list)
    for event in on_rows:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    for on_row in slices.values():
        faults += _overlaps(on_row)
    return faults + _arrow_faults(on_rows, slices)


def _overlaps(on_row: list[tuple[float, float, str]]) -> list[str]:
    """Slices that overlap without one lying in the other."""
    faults, around = [], list[tuple[float, float, str]]()
    for one in sorted(on_row, key=lambda row: (row[0], -row[1])):
        while around and around[-1][1] <= one[0] + _SAME_US:
            around.pop()
        if around and one[1] > around[-1][1] + _SAME_US:
            faults.append(f"{one[2]} overlaps")
        around.append(one)
    return faults


def _arrow_faults(events: list[Event], slices: Mapping[Any, list[tuple[float, float, str]]]) -> list[str]:
    """Arrows that are not whole, lead back, or hang on no slice."""
    faults, arrows = [], defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            arrows[event["id"]].append(event)
            row = slices[event["pid"], event["tid"]]
            if not any(start - _SAME_US <= event["ts"] <= end + _SAME_US for start, end, _ in row):
                faults.append(f"arrow {event['id']} is bound to no slice")
    for ends in arrows.values():
        if [end["ph"] for end in ends] != ["s", "f"] or ends[1].get("bp") != "e" or ends[0]["name"] != ends[1]["name"]:
            faults.append(f"arrow {ends[0]['id']} is not one arrow")
    return faults


def spans_of(document: Mapping[str, Any]) -> list[Event]:
    """All slices but those of the prediction's own row."""
    return [event for event in document["traceEvents"] if event["ph"] == "X" and event["cat"] != "prediction"]


def by_row(document: Mapping[str, Any]) -> dict[str, list[Event]]:
    names = {e["tid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    found: dict[str, list[Event]] = {name: [] for name in names.values()}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            found[names[event["tid"]]].append(event)
    return found


def end_s(document: Mapping[str, Any]) -> float:
    """When the last slice ends."""
    return float(max(event["ts"] + event["dur"] for event in spans_of(document))) / 1e6


def sum_s(events: list[Event], *kinds: str) -> float:
    """Seconds of the slices of some kinds."""
    return float(sum(event["dur"] for event in events if event["cat"] in kinds)) / 1e6
