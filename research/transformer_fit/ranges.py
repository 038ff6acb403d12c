"""What was measured, by device and by family: between which sizes, with which parts, with which programs.

``make accuracy`` writes ``planner/data/transformer_ranges.yaml`` from the rows
that the fit reads, in the folder that PLANNER_DATA names. A prediction outside of a range is said to be.
"""

from collections.abc import Callable, Mapping, Sequence

from research.transformer_fit.rows import Row

__all__ = ["ranges_of", "ranges_text"]

_COMMAND = "make accuracy"
_SIZES: dict[str, Callable[[Row], int]] = {  # by what a warning calls them
    "devices": lambda row: int(row.layouts().num_devices[0]),
    "hidden size": lambda row: row.transformer.hidden_size,
    "layers": lambda row: row.transformer.num_layers,
    "sequence length": lambda row: row.transformer.sequence_length,
    "vocabulary": lambda row: row.transformer.vocabulary_size,
    "tensor degree": lambda row: int(row.layout["tensor"]),
    "stages": lambda row: int(row.layout["pipeline"]),
    "micro-batch": lambda row: int(row.layout["microbatch"]),
    "context degree": lambda row: int(row.layout.get("context", 1)),
    "experts": lambda row: 0 if row.transformer.experts is None else row.transformer.experts.num_experts,
}


def ranges_of(rows: Sequence[Row]) -> dict[str, dict[str, object]]:
    """Return by device: least and most of every size, and the programs; and ``families``, the same of each."""
    found: dict[str, dict[str, object]] = {}
    for device in sorted({row.device for row in rows}):
        own = [row for row in rows if row.device == device]
        names = sorted({row.family for row in own})
        families = {name: _range_of([row for row in own if row.family == name]) for name in names}
        found[device] = {**_range_of(own), "families": families}
    return found


def _range_of(rows: Sequence[Row]) -> dict[str, object]:
    """Return how many rows there are, least and most of every size, and the programs, the one with most rows first."""
    programs = [row.software for row in rows]
    sizes = {name: [min(map(size, rows)), max(map(size, rows))] for name, size in _SIZES.items()}
    by_count = sorted(set(programs), key=lambda name: (-programs.count(name), name))
    return {"rows": len(rows), "sizes": sizes, "software": by_count}


def ranges_text(rows: Sequence[Row]) -> str:
    """Return the file."""
    lines = [
        "# Between which sizes steps were measured, by device and family, and with which programs (most rows first).",
        f"# Written by: {_COMMAND}",
    ]
    for device, one in ranges_of(rows).items():
        families = one["families"]
        assert isinstance(families, dict), "as made above"
        lines += [f"{device}:", *(f"  {line}" for line in _lines(one)), "  families:"]
        for name, own in families.items():
            lines += [f"    {name}:", *(f"      {line}" for line in _lines(own))]
    return "\n".join(lines) + "\n"


def _lines(one: Mapping[str, object]) -> list[str]:
    sizes, software = one["sizes"], one["software"]
    assert isinstance(sizes, dict), "as made above"
    assert isinstance(software, list), "as made above"
    ranges = [f"  {name}: [{least}, {most}]" for name, (least, most) in sizes.items()]
    return [f"rows: {one['rows']}", "sizes:", *ranges, f"software: [{', '.join(software)}]"]
