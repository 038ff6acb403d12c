"""Where the parts of a run's file do not fit together, which no field alone can tell: path, problem, mend."""

from collections import Counter
from collections.abc import Mapping, Sequence

from planner.calibration.runs.run_facts import RunFamily
from planner.calibration.runs.run_schema import RunSpec

__all__ = ["Finding", "contradictions"]

Finding = tuple[tuple[str | int, ...], str, str]
_LARGE_BYTES = 1 << 20  # from here on a transfer is as fast as the link
_FASTER = 1.5  # than the link: bursts and clocks account for a hundredth or two
_LONGER = 2.0  # a gradient later than the backward pass, which it may be by a hundredth


def contradictions(spec: RunSpec) -> list[Finding]:
    """Return where the parts do not fit together: path, problem, mend; the first of each kind."""
    sizes = {
        tensor.name: tensor.size_bytes for layer in spec.inputs.standalone[0].profile.layers for tensor in layer.tensors
    }
    found = _bad_workers(spec) + _bad_profiles(spec, set(sizes)) + _missing_settings(spec)
    return found + _bad_curves(spec) + _bad_groups(spec, sizes) + _bad_servers(spec)


def _bad_workers(spec: RunSpec) -> list[Finding]:
    """Return factors that are too few or without a profile, and iterations that are not one for each worker."""
    inputs = spec.inputs
    found: list[Finding] = []
    if len(inputs.worker_compute_factors) != inputs.world_size:
        given = len(inputs.worker_compute_factors)
        problem = f"it has {given} factors for {inputs.world_size} workers."
        found.append((("inputs", "worker_compute_factors"), problem, "Give one for each worker."))
    profiled = {one.compute_factor for one in inputs.standalone}
    for rank, factor in enumerate(inputs.worker_compute_factors):
        if factor not in profiled:
            problem = f"no profile in inputs.standalone has the compute factor {factor:g} of worker {rank}."
            found.append((("inputs", "worker_compute_factors", rank), problem, "Add the profile of such a worker."))
    if (together := inputs.all_workers_computing_without_communication) and len(together) != inputs.world_size:
        problem = f"it has {len(together)} workers of {inputs.world_size}."
        path = ("inputs", "all_workers_computing_without_communication")
        found.append((path, problem, "Give one for each worker, or none."))
    return found


def _bad_profiles(spec: RunSpec, names: set[str]) -> list[Finding]:
    """Return profiles of another network than the first, without tensors, or with gradients after the backward pass."""
    first = spec.inputs.standalone[0].profile.layers
    found: list[Finding] = []
    if not names:
        path = ("inputs", "standalone", 0, "profile", "layers")
        found.append((path, "no layer has a tensor.", "Profile a network that has parameters."))
    for index, one in enumerate(spec.inputs.standalone):
        path = ("inputs", "standalone", index, "profile", "layers")
        tensors = [tensor for layer in one.profile.layers for tensor in layer.tensors]
        if len({tensor.name for tensor in tensors}) < len(tensors):
            found.append((path, "a tensor stands in it twice.", "Name each tensor once."))
        if names != {tensor.name for tensor in tensors}:
            found.append((path, "it has other tensors than the first profile.", "Profile the same network."))
        elif [layer.name for layer in one.profile.layers] != [layer.name for layer in first]:
            found.append((path, "it has other layers than the first profile.", "Profile the same network."))
        backward_s = one.profile.totals.backward_time_s
        late = next((t for t in tensors if t.gradient_ready_offset_s > _LONGER * backward_s), None)
        if late:
            problem = (
                f"the gradient of {late.name!r} is ready after {late.gradient_ready_offset_s:g} s of a backward pass "
                f"that takes {backward_s:g} s."
            )
            found.append((path, problem, "Give both in seconds."))
    return found


def _missing_settings(spec: RunSpec) -> list[Finding]:
    """Return which settings and curves the family needs and the file has not."""
    key = "allreduce" if RunFamily(spec.family).is_all_reduce else "ps"
    found: list[Finding] = []
    if getattr(spec.inputs, key) is None:
        found.append((("inputs", key), f"a run of the family {spec.family} needs it.", "Add it."))
    if getattr(spec.inputs.communication_time_curves, key) is None:
        path = ("inputs", "communication_time_curves", key)
        found.append((path, f"a run of the family {spec.family} needs it.", "Add the curves of this session."))
    return found


def _bad_curves(spec: RunSpec) -> list[Finding]:
    """Return sizes that stand twice in a curve, and transfers that no link of this rate can carry in their time."""
    curves, number = spec.inputs.communication_time_curves, spec.inputs.world_size
    named = []  # path, points, bytes that cross a link for each of a transfer's
    if curves.allreduce:
        named.append((("allreduce", "isolated"), curves.allreduce.isolated, 2 * (number - 1) / number))
    if curves.ps:
        named.append((("ps", "push_one_worker"), curves.ps.push_one_worker, 1.0))
        named.append((("ps", "pull_one_worker"), curves.ps.pull_one_worker, 1.0))
    rate_bytes_per_s = spec.inputs.network.link_rate_bytes_per_s
    found: list[Finding] = []
    for key, points, share in named:
        path = ("inputs", "communication_time_curves", *key)
        sizes = [point.size_bytes for point in points]
        if len(set(sizes)) < len(sizes):
            found.append((path, "a size stands twice in this curve.", "Keep one time for each size."))
        for index, point in enumerate(points):
            least_s = share * point.size_bytes / rate_bytes_per_s
            if point.size_bytes >= _LARGE_BYTES and point.time_median_s * _FASTER < least_s:
                problem = (
                    f"{point.size_bytes} bytes in {point.time_median_s:g} s is faster than links of "
                    f"{rate_bytes_per_s:g} bytes a second, which take {least_s:g} s."
                )
                found.append(((*path, index, "time_median_s"), problem, "Give seconds, and the rate in bytes."))
                break
    return found


def _bad_groups(spec: RunSpec, sizes: Mapping[str, int]) -> list[Finding]:
    """Return buckets and keys that do not hold each tensor of the network, once, with all of its bytes."""
    found: list[Finding] = []
    if spec.inputs.allreduce:
        path = ("inputs", "allreduce", "buckets_used")
        buckets = spec.inputs.allreduce.buckets_used
        held = [name for bucket in buckets for name in bucket.tensors]
        if len(set(held)) < len(held):
            found.append((path, "a tensor stands in two buckets.", "Name each tensor once."))
        unlike = _unlike(path, held, sizes)
        sums = [sum(sizes.get(name, 0) for name in bucket.tensors) for bucket in buckets]
        found += unlike or _unequal(path, "bucket", [bucket.size_bytes for bucket in buckets], sums)
    if spec.inputs.ps:
        path = ("inputs", "ps", "keys")
        given: Counter[str] = Counter()
        for key in spec.inputs.ps.keys:
            given[key.tensor] += key.size_bytes
        unlike = _unlike(path, list(given), sizes)
        wrong = None if unlike else next((name for name in sizes if given[name] != sizes[name]), None)
        if wrong is not None:
            problem = f"the keys of {wrong!r} hold {given[wrong]} bytes; the profile has {sizes[wrong]}."
            unlike = [(path, problem, "Let a tensor's keys hold all of its bytes.")]
        found += unlike
    return found


def _unequal(path: tuple[str | int, ...], what: str, given: Sequence[int], sums: Sequence[int]) -> list[Finding]:
    """Return the first group whose bytes are not those of its tensors; one of empty tensors alone may have any."""
    for index, (size_bytes, sum_bytes) in enumerate(zip(given, sums, strict=True)):
        if sum_bytes and size_bytes != sum_bytes:
            problem = f"it is a {what} of {size_bytes} bytes; its tensors have {sum_bytes}."
            return [((*path, index, "size_bytes"), problem, "Give the sum of its tensors.")]
    return []


def _unlike(path: tuple[str | int, ...], held: Sequence[str], sizes: Mapping[str, int]) -> list[Finding]:
    """Return what is said of tensors that are on one side alone."""
    unknown, missing = sorted(set(held) - sizes.keys()), sorted(sizes.keys() - set(held))
    if not unknown and not missing:
        return []
    what = f"tensor {unknown[0]!r} is not in the profile" if unknown else f"tensor {missing[0]!r} is missing"
    return [(path, f"{what}.", "Name each tensor of inputs.standalone, and no other.")]


def _bad_servers(spec: RunSpec) -> list[Finding]:
    """Return servers that share hosts with workers that are not there."""
    given = spec.inputs.ps
    if given is None or not given.colocated or given.servers <= spec.inputs.world_size:
        return []
    problem = f"{given.servers} servers share the hosts of {spec.inputs.world_size} workers."
    return [(("inputs", "ps", "servers"), problem, "Give each of them a worker's host, or set colocated to false.")]
