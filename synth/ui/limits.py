"""What the page may ask of the server: sizes, times, and the work of a visitor."""

import re
from dataclasses import dataclass
from math import lcm

from synth.errors import SynthError
from synth.schedule.model import Placement

# Layers of a model.
MOST_LAYERS = 1024

# Ops of a micro-batch on a stage copy: F, B and W.
_PER_MICRO_BATCH = 3


def named_stages(name: str, ranks: int) -> int:
    """Return the stages of a placement by its name, without making it.

    Args:
        name: as `synth.schedule.placements` has it; one that is not known counts as linear.
    """
    numbers = _numbers(name)
    if name.startswith("round-robin"):
        return len(numbers) if len(numbers) > 1 else -(-ranks // numbers[0])
    turns = 2 if re.match(r"(bidirectional-)?(v|wave)\b", name) else 1
    return turns * numbers[0] * ranks


def named_copies(name: str, ranks: int) -> int:
    """Return the stage copies of a placement by its name; where it depends, the most."""
    copies = 1
    if name.startswith("bidirectional"):
        copies = 2
    elif name.startswith(("all-stages", "replicated", "dispatched")):
        copies = ranks
    elif name.startswith("round-robin"):
        copies = lcm(*_numbers(name))
    return copies * named_stages(name, ranks)


def _numbers(name: str) -> list[int]:
    """Return the numbers in a placement's name, 1 if there is none."""
    found = re.findall(r"\d{1,6}", name.partition(":")[2])
    return [max(1, int(each)) for each in found] or [1]


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        is_public: it is for visitors: no files of the working folder, no token, limits of work.
        most_ops: of a schedule that is drawn.
        most_timed_ops: of a published schedule whose order is computed from times.
        most_body_bytes: of a request.
        most_points: of a memory curve.
        workers: solver threads; None: one per core.
        work_s: seconds of work that a visitor gets in `window_s` seconds; None: not limited.
        window_s: see `work_s`.
    """

    is_public: bool = False
    most_ops: int = 600_000
    most_timed_ops: int = 20_000
    most_body_bytes: int = 64 << 20
    search_s: float = 3600.0
    most_points: int = 20
    workers: int | None = None
    work_s: float | None = None
    window_s: float = 600.0

    def points(self, count: int) -> int:
        """Return how many points a memory curve gets of those asked for."""
        return max(2, min(count, self.most_points))

    def point_s(self, time_limit_s: float, points: int) -> float:
        """Return the seconds of each point of a memory curve."""
        return min(time_limit_s, self.search_s / points)

    def check_layers(self, count: int, called: str) -> None:
        """Refuse a model of too many layers."""
        if count > MOST_LAYERS:
            raise SynthError(
                f"{called} has {count:,} layers; a model here has at most {MOST_LAYERS:,}"
            )

    def check_size(self, where: Placement, micro_batches: int, *, is_timed: bool = False) -> None:
        """Refuse a schedule that is too large."""
        self._check_copies(where.num_stages * len(where.ranks), micro_batches, is_timed=is_timed)

    def check_named(self, name: str, ranks: int, micro_batches: int) -> None:
        """Refuse a schedule that is too large, by the name of its placement, which is not made."""
        self._check_copies(named_copies(name, ranks), micro_batches, is_timed=False)

    def _check_copies(self, stages: int, micro_batches: int, *, is_timed: bool) -> None:
        ops = _PER_MICRO_BATCH * stages * micro_batches
        most = self.most_timed_ops if is_timed else self.most_ops
        if ops > most:
            kind = " whose order is computed from times" if is_timed else ""
            raise SynthError(
                f"{ops:,} ops ({stages} stages, {micro_batches} micro-batches) are too many for a "
                f"schedule{kind} here; give fewer ranks, stages or micro-batches: at most "
                f"{most:,} ops"
            )


LOCAL = Limits()


# For visitors: the longest search, seconds of work, and ops of a schedule.
_SEARCH_S, _WORK_S, _MOST_OPS = 20.0, 120.0, 20_000


def public(
    search_s: float | None = None, work_s: float | None = None, most_ops: int | None = None
) -> Limits:
    """Return the limits for visitors; what is None has its default.

    Args:
        work_s: seconds of work that a visitor gets in ten minutes.
    """
    most_ops = most_ops or _MOST_OPS
    return Limits(
        is_public=True,
        most_ops=most_ops,
        most_timed_ops=min(most_ops, 5_000),
        most_body_bytes=1 << 20,
        search_s=search_s or _SEARCH_S,
        most_points=6,
        workers=1,
        work_s=work_s or _WORK_S,
    )
