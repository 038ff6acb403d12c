"""Work of one ONNX operator, of the bodies of loops and branches, and which operators could not be counted."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from planner.importers.onnx_model.attention import attention_of
from planner.importers.onnx_model.elements import ELEMENTS, FREE
from planner.importers.onnx_model.plain import OnnxGraph, OnnxNode, shown
from planner.importers.onnx_model.products import PRODUCTS
from planner.importers.onnx_model.scope import Scope
from planner.importers.onnx_model.stand_ins import MICROSOFT
from planner.importers.onnx_model.view import UnknownShapeError, View, Work

__all__ = ["Doubts", "is_known", "work_of"]

_CONTROL = ("If", "Loop", "Scan")
_MOST_TRIPS = 10**6  # exporters write the largest number for "until a condition fails"
_MOST_WORK = 10**18


@dataclass
class Doubts:
    """Operators that count no work, or not surely what they do, by name and number."""

    unknown: Counter[str] = field(default_factory=Counter)
    shapeless: Counter[str] = field(default_factory=Counter)
    unsized: Counter[str] = field(default_factory=Counter)
    bodies: Counter[str] = field(default_factory=Counter)

    def warnings(self) -> list[str]:
        """Return what to tell."""
        found = []
        for counter, one, many in (
            (self.unknown, "operator of an unknown kind counts no work", "operators of unknown kinds count no work"),
            (
                self.shapeless,
                "operator whose shapes are not known counts no work",
                "operators whose shapes are not known count no work",
            ),
            (
                self.unsized,
                "operator whose output's size is not known keeps no activations",
                "operators whose outputs' sizes are not known keep no activations",
            ),
        ):
            if total := counter.total():
                found.append(f"{total} {one if total == 1 else many}: {_listed(counter)}.")
        bodies = [f"{what} ({count})." if count > 1 else f"{what}." for what, count in sorted(self.bodies.items())]
        more = [f"{len(bodies) - 20} more loops and branches are counted so."] if bodies[20:] else []
        return [*found, *bodies[:20], *more]


def _listed(counter: Counter[str]) -> str:
    """Return names with their numbers, the most frequent first."""
    ordered = sorted(counter.items(), key=lambda pair: (-pair[1], pair[0]))
    more = f" and {len(ordered) - 20} more kinds" if ordered[20:] else ""
    return ", ".join(f"{name} ({count})" for name, count in ordered[:20]) + more


def is_known(node: OnnxNode) -> bool:
    """Whether there is a rule for the operator, or it is known to compute nothing."""
    return _rule(node) is not None or node.op_type in _CONTROL


def _rule(node: OnnxNode) -> Callable[[View], Work] | None:
    """Return the rule of an operator."""
    if node.domain and node.domain not in MICROSOFT:
        return None
    if node.op_type == "Attention":
        return attention_of(node.domain)
    if node.op_type in FREE:
        return _no_work
    return PRODUCTS.get(node.op_type) or ELEMENTS.get(node.op_type)


def _no_work(view: View) -> Work:
    return Work()


def work_of(node: OnnxNode, scope: Scope, doubts: Doubts) -> Work:
    """Return the work of one operator for the whole batch; what is not known is noted in ``doubts``, and counts 0.

    Raises
    ------
    ValueError
        For work beyond all reason.
    """
    if not node.domain and node.op_type in _CONTROL:
        return _control(node, scope, doubts)
    rule = _rule(node)
    if rule is None:
        doubts.unknown[_name(node)] += 1
        return sum((_body(graph, scope, doubts) for graph in node.graphs), Work())
    try:
        work = rule(View(node, scope.shape_of, scope.values_of))
        if min(work.multiply_adds, work.element_flop) < 0:
            raise UnknownShapeError  # an attribute that is no size
    except (UnknownShapeError, OverflowError, ZeroDivisionError):
        doubts.shapeless[_name(node)] += 1
        return Work()
    return _checked(work, node)


def _checked(work: Work, node: OnnxNode) -> Work:
    """Refuse work beyond all reason."""
    if work.multiply_adds > _MOST_WORK or work.element_flop > _MOST_WORK:
        raise ValueError(f"operator {node.name or node.op_type!r} would take more than {_MOST_WORK:.0e} operations")
    return work


def _name(node: OnnxNode) -> str:
    """Return the name of a kind of operators, with its domain where that is not ONNX's own."""
    return shown(f"{node.domain}.{node.op_type}" if node.domain else node.op_type)


def _control(node: OnnxNode, scope: Scope, doubts: Doubts) -> Work:
    """Return the work of a branch, of which the dearer side counts, or of a loop's body as often as it runs."""
    bodies = [_body(graph, scope, doubts) for graph in node.graphs]
    label = shown(node.name or node.op_type)
    if node.op_type == "If":
        doubts.bodies[f"Of the branch {label!r} the side with more work is counted"] += 1
        return max(bodies, key=lambda work: (work.multiply_adds, work.element_flop), default=Work())
    trips = _trips(node, scope)
    if trips is None:
        doubts.bodies[f"It is not known how often the loop {label!r} runs: its body is counted once"] += 1
    else:
        doubts.bodies[f"The body of the loop {label!r} is counted {trips} times"] += 1
    return _checked(sum(bodies, Work()) * (1 if trips is None else trips), node)


def _trips(node: OnnxNode, scope: Scope) -> int | None:
    """Return how often a loop runs; None where it is not known."""
    view = View(node, scope.shape_of, scope.values_of)
    if node.op_type == "Loop":
        values = scope.values_of(node.inputs[0]) if node.inputs and node.inputs[0] else None
        if values is None or values.size != 1 or values.dtype.kind not in "iu":
            return None
        count = int(values.ravel()[0])
        return count if 0 <= count <= _MOST_TRIPS else None
    num_scanned = view.integer("num_scan_inputs")
    if not 1 <= num_scanned <= len(node.inputs):
        return None
    axes = view.integers("scan_input_axes") or (0,)
    try:
        return view.input(len(node.inputs) - num_scanned)[axes[0]]
    except (UnknownShapeError, IndexError):
        return None


def _body(graph: OnnxGraph, parent: Scope, doubts: Doubts) -> Work:
    """Return the work of one run of a body."""
    scope = Scope(graph, parent)
    return sum((work_of(node, scope, doubts) for node in graph.nodes if not scope.is_folded(node)), Work())
