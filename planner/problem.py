"""A question, checked and in SI units: what to train, on what, for which goal, under which limits.

:mod:`planner.question` builds a :class:`Problem` from text; families answer it. Nothing here is optional by accident:
what the user left open is None, and what was assumed for them stands in ``assumptions``.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from math import ceil, inf
from typing import Any, Literal

from planner.cluster import Cluster, Device, MachineGroup
from planner.cost import Profile, TransferCost, Wait
from planner.dnn import Dnn
from planner.frozen import frozen
from planner.links import LinkRates
from planner.plan import Goal
from planner.substitution import Substitution

Algorithm = Literal["ring", "tree", "two_level", "in_network"]
USUAL_ALGORITHMS: tuple[Algorithm, ...] = (
    "ring",
    "tree",
    "two_level",
)  # of all-reduces, NCCL's: tried where a spec names none


@frozen
class Assumption:
    """What the user left open and what may change the answer: it is printed under the headline, with its effect."""

    text: str  # what was assumed: ``nvlink-4 between the devices of h100-sxm (its reference machine)``
    # the place in the resolved question that says it, as path: ``("cluster", "machines", 0, "inside")``
    field: tuple[str | int, ...]
    flag: str  # what the user may write to say otherwise: ``--inside``, or a key of a spec
    # the likeliest other value at ``field``; its effect on the answer is what is printed. None: not computed
    other: Any = None
    # further places where the same was assumed: of other groups of machines
    also: tuple[tuple[str | int, ...], ...] = ()


@frozen
class Range:
    """Whole numbers from ``least`` to ``most``, both included; ``most`` None means no limit of the user's."""

    least: int = 1
    most: int | None = None

    def __contains__(self, number: int) -> bool:
        """Whether ``number`` is allowed."""
        return self.least <= number and (self.most is None or number <= self.most)

    @property
    def words(self) -> str:
        """``exactly 7``, ``at least 3``, or both ends."""
        if self.least == self.most:
            return f"exactly {self.least}"
        least = f"at least {self.least}" if self.least > 1 else ""
        most = f"at most {self.most}" if self.most is not None else ""
        return ", ".join(filter(None, (least, most)))

    def pinned(self, number: int | None) -> "Range":
        """Return what is left with a pinned number, if there is one: nothing, where it lies outside."""
        if number is None:
            return self
        return Range(least=max(self.least, number), most=number if self.most is None else min(number, self.most))


@frozen
class LowPrecision:
    """Products of a transformer's blocks in numbers of eight or four bits; all else stays in the training's ``dtype``.

    ``name`` and ``recipe``: a key of :data:`planner.models.low_precision.NUMBER_TYPES`. ``wide_layers``: how many of
    the last layers have products in the training's ``dtype``, too.
    """

    name: str
    recipe: str
    wide_layers: int = 0


@frozen
class Training:
    """The batch, the data set and the numbers' types.

    Exactly one of ``batch_per_device`` and ``global_batch_size`` is given, or ``max_global_batch_size`` where the batch
    may vary up to a maximum (then with or without ``batch_per_device``). ``num_devices`` are those that a fixed
    ``batch_per_device`` is meant for: together they make the global batch on which all families are compared, however
    many devices a plan uses of them. See :attr:`Problem.is_number_of_devices_open`. ``low``: in what a transformer's
    blocks multiply, where that is shorter than ``dtype``.
    """

    batch_per_device: int | None = None
    global_batch_size: int | None = None
    max_global_batch_size: int | None = None
    dataset_samples: int | None = None
    epochs: float | None = None
    sample_bytes: float = 0.0
    is_sample_size_given: bool = False
    device_sample_bytes: float = 0.0
    dtype: str = "fp32"
    optimizer: str = "momentum"
    num_devices: int | None = None
    low: LowPrecision | None = None

    @property
    def own_words(self) -> str:
        """What of it the family of transformers alone counts; nothing where every family does."""
        return "an optimizer that computes with whole matrices" if self.optimizer == "muon" else ""

    @property
    def fixed_batch_size(self) -> int | None:
        """The global batch where it is fixed, directly or by devices; None where it may vary."""
        if self.global_batch_size is None and self.batch_per_device and self.num_devices:
            return self.batch_per_device * self.num_devices
        return self.global_batch_size

    def measured_read_s(self, profile: Profile, group: MachineGroup) -> float | None:
        """Return the measured seconds of reading one sample, unless its size and the storage are both given."""
        return None if group.storage is not None and self.is_sample_size_given else profile.read_s


@frozen
class Queue:
    """An M/M/1 queue of packets at the switch: what it forwards, the packet, and the hops over it."""

    switch_bytes_per_s: float
    packet_bytes: float = 1500.0
    num_hops: int = 1


@frozen
class Calibration:
    """Fitted parameters of the devices, the links and the framework.

    ``all_reduce_curves``, by number of devices, measured or fitted to eq. 18, replace the closed forms where given.
    ``strategy`` says what the framework overlaps, see :class:`planner.models.input.Strategy`. ``negotiate_s``
    is the framework's coordination per all-reduce, ``overhead_s`` the library's start-up; ``straggler_deviation_s`` the
    standard deviation of a worker's time from one iteration to the next. ``num_cores`` share a device's peak as
    threads; ``activation_s`` and ``error_s`` are ``C_act`` and ``C_err`` of the Adam model. ``split_tensors``: a tensor
    may be cut over several parameter servers. ``max_overlap``: how far sums may go beside computing, each on its own;
    None where they wait behind a barrier. ``transformer_reserve_bytes``: ``memory_reserve_bytes`` where that is
    given, else the most that a device which trains a transformer keeps for itself, of which a small one keeps
    ``transformer_reserve_share`` of its memory; ``expert_pieces_share`` of it more where there are experts.
    ``program``: what trains a transformer, by name.
    ``gradients``: the type in which it keeps and reduces gradients, None where that is left to it. ``cuda_graphs``:
    whether it launches a step's kernels by CUDA graphs, None where nobody says.
    ``expert_imbalance``: tokens of the rank whose experts have most, over the mean of all ranks.
    ``transport``: by what machines send, None where nobody says.
    """

    links: LinkRates = LinkRates()
    transport: str | None = None
    overhead_s: float = 0.0
    negotiate_s: float = 0.0
    algorithms: tuple[str, ...] = USUAL_ALGORITHMS
    all_reduce_curves: Mapping[int, TransferCost] = field(default_factory=dict)
    aggregation: bool = True
    wait: Wait = Wait.NONE
    timeout_s: float = float("inf")
    fusion_unit: str = "layer"
    split_tensors: bool = False
    max_overlap: str | None = None
    strategy: str = "caffe_mpi"
    is_prefetch_pipelined: bool = True
    memory_reserve_bytes: float = 0.0
    transformer_reserve_bytes: float = 0.0
    transformer_reserve_share: float = float("inf")
    expert_pieces_share: float = 0.0
    program: str = "megatron-core"
    gradients: str | None = None
    cuda_graphs: bool | None = None
    expert_imbalance: float = 1.0
    straggler_deviation_s: float = 0.0
    queue: Queue | None = None
    utilisation: float = 0.5
    num_cores: int = 1
    activation_s: float = 0.0
    error_s: float = 0.0
    multiply_add_s: tuple[tuple[float, float], ...] = ()
    interference: tuple[tuple[int, float], ...] = ()

    def reduce_bytes_per_s(self, device: Device, gradient_bytes: float) -> float:
        """Return bytes of gradients of some width that a device adds up in a second (eq. 7 of the OSF model).

        Infinite where that is not counted, or the device's peak is not known.
        """
        peak = device.peak_flop_per_s.get("fp32") if self.aggregation else None
        return inf if peak is None else peak * gradient_bytes

    def transformer_reserve_of(self, memory_bytes: float, *, has_experts: bool) -> float:
        """Return what a device of so much memory keeps for itself where it trains a transformer."""
        pieces = self.expert_pieces_share * memory_bytes if has_experts and memory_bytes < inf else 0.0
        return min(self.transformer_reserve_bytes, self.transformer_reserve_share * memory_bytes) + pieces

    def transformer_memory_for(self, held_bytes: float, *, has_experts: bool) -> float:
        """Return the memory of the smallest device with room for so much beside what it keeps for itself."""
        left = 1.0 - (self.expert_pieces_share if has_experts else 0.0)
        smallest = (held_bytes + self.transformer_reserve_bytes) / left
        if self.transformer_reserve_share < left:
            smallest = min(smallest, held_bytes / (left - self.transformer_reserve_share))
        return smallest


@frozen
class RackPower:
    """What the machines of one rack may draw, and how many machines of a group stand in a rack."""

    power_w: float
    machines_per_rack: int


@frozen
class Limits:
    """What a plan must respect.

    ``max_staleness``: by how many iterations the gradients of asynchronous training may lag: ``s`` of SSP(s), ``H - 1``
    of local SGD(H), infinity whatever comes. 0 is synchronous, whatever is pinned. None: the user does not say, and
    training is synchronous unless a pin asks for something else.
    """

    devices: Range = Range()
    machines: Range = Range()
    memory_per_device_bytes: float | None = None
    deadline_s: float | None = None
    max_staleness: float | None = None
    power_per_rack: RackPower | None = None


def with_batch_per_device(
    training: Training, batch: int, cluster: Cluster, limits: Limits, fixed: Mapping[str, Any]
) -> Training:
    """Return the training on so many samples a device, and the devices that this is meant for.

    Those are the devices that limits and pins name, else as many as they allow. On unequal devices a batch per device
    sets the global batch alone: shares are decisions.
    """
    groups, per_machine = cluster.training_groups(fixed.get("device")), fixed.get("devices_per_machine")
    machines, most = fixed.get("num_machines") or limits.machines.most, limits.devices.most
    if machines is None:
        number = sum(group.count * (per_machine or group.devices_per_machine) for group in groups)
    else:
        number = machines * (per_machine or min((group.devices_per_machine for group in groups), default=1))
    if most is not None:
        number = most if limits.devices.least == most else min(number, most)
    number = int(fixed.get("num_devices") or number)
    if per_machine or len({(group.device.name, group.devices_per_machine) for group in groups}) <= 1:
        return replace(training, batch_per_device=batch, global_batch_size=None, num_devices=number)
    return replace(training, batch_per_device=None, global_batch_size=batch * number, num_devices=None)


@frozen
class CompressionOption:
    """Gradients may be compressed: ``scale_s / (1 - removed)**2`` an iteration, with at most ``most_removed``."""

    scale_s: float
    most_removed: float


@frozen
class Problem:
    """One question."""

    dnn: Dnn
    cluster: Cluster
    profiles: Mapping[str, Profile]  # seconds of the layers, by device name
    training: Training
    calibration: Calibration
    limits: Limits
    goal: Goal
    families: tuple[str, ...]  # those that may answer: asked for, or all, and not forbidden
    # pinned decisions, by their configuration key; a family that lacks one of them cannot answer
    fixed: Mapping[str, Any]
    # values that a decision must not take, by the same keys; the family ``hybrid`` alone answers then
    excluded: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # whether gradients may be compressed, and what that costs; None: they may not
    compression: CompressionOption | None = None
    substitutions: tuple[Substitution, ...] = ()  # layer replacements that may be chosen; see :mod:`planner.networks`
    taken: tuple[str, ...] = ()  # names of those that ``dnn`` and ``profiles`` already hold
    question: "Problem | None" = None  # where a network was chosen: the problem with all of them open
    # for ``predict``: family name and its block, as ``plan`` prints it
    configuration: tuple[str, Mapping[str, Any]] | None = None
    # for ``predict``: ``printed`` takes a paper's equations with their slips; ``plan`` never does
    variant: str = "corrected"
    # is_computation_measured, are_links_calibrated: whether seconds of layers, and costs of transfers, rest on
    # measurements: which known error applies
    is_computation_measured: bool = False
    are_links_calibrated: bool = False
    # of what was assumed, that which may change the answer; in no particular order
    key_assumptions: tuple[Assumption, ...] = ()
    # assumptions, warnings: what was assumed for the user; what makes the figures doubtful. Both are printed with every
    # answer
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    # where the network is a transformer: the fitted figures of :mod:`planner.data.fits`
    transformer_rates: Mapping[str, Any] = field(default_factory=dict)
    # likewise: the memory of the accelerators that are listed, by their name, to be named where memory is short
    listed_memory_bytes: Mapping[str, float] = field(default_factory=dict)
    resolved: Mapping[str, Any] = field(default_factory=dict)  # the question as a spec that needs no other file

    def __repr__(self) -> str:
        """Return what a prompt shows; ``resolved`` has the whole question."""
        return f"<Problem: {self.goal.name} of {self.dnn.name!r} on {self.cluster.num_devices:,} devices>"

    @property
    def own_words(self) -> str:
        """What of it the family of transformers alone counts; nothing where every family does."""
        network = self.dnn.transformer
        return self.training.own_words or ("" if network is None else network.trained.own_words)

    # -- how many devices a plan uses: every family reads it here ---------------------------------------------------

    @property
    def is_number_of_devices_open(self) -> bool:
        """Whether a plan may leave devices idle, as far as the batch and the goal say.

        Per epoch or training, and with a global batch, plans on any number of devices do the same work, and the number
        is searched. With a fixed batch per device an iteration of fewer devices is less work: one device would be
        trivially fastest per iteration, so that all are used.
        """
        return self.training.num_devices is None or self.goal.name != "iteration_time"

    @property
    def allowed_devices(self) -> Range:
        """How many devices may train, by limits and pins alone; a range that is empty allows none."""
        return self.limits.devices.pinned(self.fixed.get("num_devices"))

    @property
    def allowed_machines(self) -> Range:
        """How many machines may train or serve, by limits and pins alone; a range that is empty allows none."""
        return self.limits.machines.pinned(self.fixed.get("num_machines"))

    @property
    def training_devices(self) -> Range:
        """How many devices train where no machine only serves: those allowed, and all if the number is not open."""
        return self.allowed_devices.pinned(None if self.is_number_of_devices_open else self.training.num_devices)

    @property
    def busy_machines(self) -> int:
        """How many of the machines that may train must do so, or serve instead: 0 where the number is open or named."""
        if self.is_number_of_devices_open or self.allowed_machines != Range():
            return 0
        groups = self.cluster.training_groups(self.fixed.get("device"))
        return ceil((self.training.num_devices or 0) / max((one.devices_per_machine for one in groups), default=1))

    @property
    def devices_words(self) -> str:
        """Why a plan on fewer devices was not searched; nothing where their number is open."""
        if self.is_number_of_devices_open:
            return ""
        number = self.training_devices.least
        return f"all {number:,} devices are used: a time per iteration with a fixed batch per device"


# --- A question with other limits or pins: what its batch then means


def as_meant(problem: Problem) -> Problem:
    """Return the question with the global batch that its limits and pins now mean.

    A batch per device is meant for the devices that the limits and pins name, or for all
    (:func:`with_batch_per_device`); hence a change of the one changes the other.
    """
    batch = batch_per_device(problem)
    if batch is None:
        return problem
    meant = with_batch_per_device(problem.training, batch, problem.cluster, problem.limits, problem.fixed)
    return replace(problem, training=meant)


def batch_per_device(problem: Problem) -> int | None:
    """Return the samples of a device where they, with the number of devices, fix the global batch."""
    training = problem.training
    if training.max_global_batch_size is not None:
        return None
    batch = training.batch_per_device or problem.resolved.get("dnn", {}).get("batch_per_device")
    return None if batch is None else int(batch)
