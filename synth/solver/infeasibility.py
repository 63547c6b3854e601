"""Infeasibility in closed form: memory limits that no schedule can keep, found before any search.

A rank cannot need less than one micro-batch alone, in the order of its ops that needs least (see
`single_micro_batch`): anything else that it holds only adds to that. The serial schedule, one
micro-batch after the other in that order, reaches this where a rank holds one stage, and comes
close where it holds more. It cannot deadlock, because every rank passes the micro-batches one by
one.
"""

from dataclasses import dataclass

from synth.schedule.model import SMALLEST_BUFFERING, Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import exceeds_caps, peak_bytes
from synth.schedule.verify import verify
from synth.solver.instance.instance import STEP, F, Instance
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.instance.single_micro_batch import least_peak
from synth.solver.problem import Problem
from synth.units import format_bytes, format_bytes_both

# The name of the schedule of one micro-batch at a time.
SERIAL = "serial"


@dataclass(frozen=True)
class Shortage:
    """The first rank that cannot keep its memory limit, its least need, and a limit that would do.

    Attributes:
        partition: the partition of the claim.
        of_all: True if no other partition fits either, nor any under a smaller limit for all ranks.
    """

    rank: int
    cap_bytes: int
    static_bytes: int
    micro_batch_bytes: int
    smallest_cap_bytes: int
    partition: tuple[int, ...] | None = None
    of_all: bool = False

    @property
    def needed_bytes(self) -> int:
        """The least memory of this rank."""
        return self.static_bytes + self.micro_batch_bytes

    def __str__(self) -> str:
        """Explain, with every way out."""
        needed, cap = _told_apart(self.needed_bytes, self.cap_bytes)
        return (
            f"no schedule fits{self._scope}: rank {self.rank} needs {needed} "
            f"even with one micro-batch at a time, and its memory limit is {cap}\n"
            f"  static (weights, gradients, optimizer): {format_bytes_both(self.static_bytes)}\n"
            f"  one micro-batch alone:                  "
            f"{format_bytes_both(self.micro_batch_bytes)}\n"
            f"  smallest feasible §mem_limit:          {self.smallest_cap_bytes}B "
            f"({format_bytes_both(self.smallest_cap_bytes)}, {self._limit_is})\n"
            f"  other ways out: more ranks, a smaller micro-batch, §recompute auto"
            f"{self._other_partition}"
        )

    @property
    def _sizes(self) -> str:
        return ",".join(map(str, self.partition or ()))

    @property
    def _scope(self) -> str:
        """The scope of the claim, words that go before the colon."""
        if self.of_all:
            return f" in any partition. In {self._sizes}, which needs the smallest limit"
        return f" for this partition ({self._sizes})" if self.partition else ""

    @property
    def _limit_is(self) -> str:
        if self.of_all:
            return f"with the partition {self._sizes}; every other one needs that much or more"
        given = f" for this partition ({self._sizes})" if self.partition else ""
        return f"the largest need of any rank{given}"

    @property
    def _other_partition(self) -> str:
        if self.of_all:
            return ""
        automatic = "; §partition auto looks for one" if self.partition else ""
        return f", a partition with fewer layers on rank {self.rank}{automatic}"


def _told_apart(first_bytes: int, second_bytes: int) -> tuple[str, str]:
    """Format two sizes, with their exact bytes if they would read alike."""
    alike = format_bytes(first_bytes) == format_bytes(second_bytes)
    first, second = (
        f"{format_bytes_both(size)}{f' = {size:,} bytes' if alike else ''}"
        for size in (first_bytes, second_bytes)
    )
    return first, second


def may_fit(problem: Problem) -> bool:
    """Return True if one micro-batch at a time may keep the caps; if not, nothing keeps them."""
    caps = problem.caps_bytes
    return caps is None or not exceeds_caps(needed_bytes(problem), caps)


def find_shortage(problem: Problem) -> Shortage | None:
    """Return why no schedule keeps the caps; None if `may_fit`."""
    if problem.caps_bytes is None:
        return None
    needed = needed_bytes(problem)
    for rank, cap in enumerate(problem.caps_bytes):
        if needed[rank] > cap:
            static = problem.static_bytes(rank)
            alone = needed[rank] - static
            about = (problem.partition, problem.partition_is_best)
            return Shortage(rank, cap, static, alone, smallest_limit_bytes(problem), *about)
    return None


def needed_bytes(problem: Problem, *, recomputing: bool = False) -> tuple[int, ...]:
    """Return the least memory of each rank: its static bytes and one micro-batch alone.

    Args:
        recomputing: True if R's may stand before B's.
    """
    instance = relaxed_memory(problem)
    return tuple(
        problem.static_bytes(rank)
        + one_micro_batch_bytes(problem, instance, rank, recomputing=recomputing)
        for rank in range(problem.num_ranks)
    )


def smallest_limit_bytes(problem: Problem) -> int:
    """Return a limit for all ranks that some schedule keeps; with one stage per rank the least."""
    needed = max(needed_bytes(problem))
    if all(len(held) == 1 for held in problem.placement.held):
        return needed
    lowered, _ = verify(serial_schedule(problem), problem.costs)
    return max(needed, *peak_bytes(lowered))


def one_micro_batch_bytes(
    problem: Problem, instance: Instance, rank: int, *, recomputing: bool = False
) -> int:
    """Return the peak of one micro-batch alone, above the static bytes.

    When the gradient's receive is posted, the activation that was just sent still exists: before
    the first B of a rank that holds one stage stands an F in every schedule, or else an R.
    """
    held = instance.held[rank]
    peaks = [instance[copy].peak_above_bytes[STEP] for copy in held]
    peaks += [least_peak(instance, copies).proven_bytes for copies in instance.chains(rank)]
    copy = instance[held[0]]
    if len(held) == 1 and copy.below is not None and not recomputing:
        stage = problem.costs.stages[copy.stage]
        sent = stage.sent_output_bytes if stage.output_until == F else 0
        peaks.append(copy.delta_bytes[F] + sent + stage.returned_bytes)
    return max(peaks)


def serial_schedule(problem: Problem) -> Schedule:
    """Make the schedule of least memory: one micro-batch at a time, with few boundary buffers."""
    instance = relaxed_memory(problem)
    programs: list[tuple[Op, ...]] = []
    for rank in range(problem.num_ranks):
        ops: list[Op] = []
        orders = [least_peak(instance, copies).order for copies in instance.chains(rank)]
        for k in range(max(copy.num_micro_batches for copy in instance.copies)):
            for order in orders:
                if k <= instance[order[0][0]].last:
                    ops += [instance[copy].op(kind, k) for copy, kind in order]
        programs.append(tuple(ops))
    return Schedule(
        problem.placement, problem.num_micro_batches, tuple(programs), SERIAL, SMALLEST_BUFFERING
    )
