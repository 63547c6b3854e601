"""Constants of memory curves and searches for the least memory limit."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LeastCapTuning:
    """Bisection for the least memory limit that allows a target."""

    # Shares of the remaining time: for the problem without a limit, and for each limit tried.
    free_share_of_left: float = 0.25
    cap_share_of_left: float = 0.2
    # If a range of limits without open ones is narrower than the undecided range over this number,
    # open ones are searched again, with their share multiplied by the factor.
    ranges: int = 16
    more_time: float = 2.0
    # Shortest useful search: the published schedules alone take as long.
    shortest_s: float = 0.2
    # Sums of bytes above which the table of cap breakpoints is not worth its time.
    most_sums: int = 2_000_000


@dataclass(frozen=True)
class CurveTuning:
    """Search for the points of a memory curve."""

    # Ranges of limits narrower than this share of the whole are not searched.
    finest_share: float = 1 / 512
    # Interval at which results of the worker processes are collected.
    poll_s: float = 0.1


@dataclass(frozen=True)
class SteadyCapTuning:
    """The least memory limit without a bubble in the steady state."""

    # Share of the time limit for each of three steps: the proof, a pattern that fits, and the
    # pattern's shortest span.
    step_share_of_limit: float = 0.2
    # Micro-batches per rank and copy over which the time of one more micro-batch is measured.
    micro_batches_per_rank: int = 8
    # Smaller bubble rates are rounding: times are whole microseconds.
    least_bubble_rate: float = 1e-4

    @property
    def share_of_limit(self) -> float:
        """Share of the time limit for all three steps."""
        return 3 * self.step_share_of_limit


LEAST_CAP = LeastCapTuning()
CURVE = CurveTuning()
STEADY_CAP = SteadyCapTuning()
