"""Processor sharing: simulation of ranks that share fewer processors than there are ranks.

The plan assumes one device per rank. If several ranks share processors (four processes on two
cores, two ranks on one GPU), their ops slow each other down: with n ops running on P processors
each progresses at rate min(1, P / n). Transfers are not slowed.
"""

from dataclasses import dataclass

from synth.schedule.lowering.lower import Lowered
from synth.schedule.simulate import Timeline


def simulate_shared(lowered: Lowered, num_processors: int) -> Timeline:
    """Simulate with `num_processors` shared fairly among the compute ops that run.

    With at least as many processors as ranks this equals `simulate`, up to rounding. The lowered
    form must be free of deadlock (`verify` proves it).
    """
    start, end = _Fluid(_Work.of(lowered), num_processors).run()
    return Timeline(lowered, start, end)


def shared_period_us(lowered: Lowered, num_processors: int, num_iterations: int = 4) -> int:
    """The time of an iteration in steady state, if ranks share processors and iterations overlap.

    It is measured between the ends of the last two of `num_iterations` back-to-back iterations.
    With a processor for each rank it is at most `Timeline.period_us`.
    """
    work = _Work.of(lowered)
    _, end = _Fluid(work.repeated(lowered, num_iterations), num_processors).run()
    size = len(work.durations_us)
    last, before = (
        max(end[k * size + node] for node in range(size) if work.computes[node])
        for k in (num_iterations - 1, num_iterations - 2)
    )
    return last - before


@dataclass(frozen=True)
class _Work:
    """Nodes with their durations and predecessors, and a flag for those that need a processor."""

    durations_us: list[int]
    predecessors: list[list[int]]
    computes: list[bool]

    @classmethod
    def of(cls, lowered: Lowered) -> "_Work":
        """One iteration."""
        num_ops, size = lowered.first_node[-1], len(lowered.durations_us)
        computes = [node < num_ops for node in range(size)]
        return cls(lowered.durations_us, lowered.predecessors, computes)

    def repeated(self, lowered: Lowered, times: int) -> "_Work":
        """Several iterations back to back.

        A rank's first op waits for its last op of the previous iteration, a transfer or reduction
        for the same one there.
        """
        first, size = lowered.first_node, len(self.durations_us)
        before = {
            first[r]: first[r + 1] - 1 for r in range(lowered.num_ranks) if first[r] < first[r + 1]
        }
        before |= {node: node for node in range(first[-1], size)}
        lists = [
            [k * size + other for other in self.predecessors[node]]
            + ([(k - 1) * size + before[node]] if k and node in before else [])
            for k in range(times)
            for node in range(size)
        ]
        return _Work(self.durations_us * times, lists, self.computes * times)


class _Fluid:
    """A fluid simulation; each event is the end of the node that runs out of work first."""

    def __init__(self, work: _Work, num_processors: int) -> None:
        self.num_processors = num_processors
        self.computes = work.computes
        self.left = [float(duration) for duration in work.durations_us]
        self.waiting = [len(before) for before in work.predecessors]
        self.successors: list[list[int]] = [[] for _ in self.left]
        for node, before in enumerate(work.predecessors):
            for other in before:
                self.successors[other].append(node)
        self.running: set[int] = {n for n, count in enumerate(self.waiting) if count == 0}

    def run(self) -> tuple[list[int], list[int]]:
        """Return the start and the end of each node, in microseconds."""
        now = 0.0
        start = [0] * len(self.left)
        end = [0] * len(self.left)
        while self.running:
            step, rate = self._next_event()
            now += step
            done = []
            for node in self.running:
                self.left[node] -= step * (rate if self.computes[node] else 1.0)
                if self.left[node] <= 1e-6:
                    done.append(node)
            for node in done:
                self.running.remove(node)
                end[node] = round(now)
                for after in self._released(node):
                    start[after] = round(now)
                    self.running.add(after)
        return start, end

    def _next_event(self) -> tuple[float, float]:
        """Return the time to the first end of a running node, and the rate of ops until then."""
        active = sum(1 for n in self.running if self.computes[n] and self.left[n] > 0)
        rate = min(1.0, self.num_processors / active) if active else 1.0
        step = min(self.left[n] / (rate if self.computes[n] else 1.0) for n in self.running)
        return step, rate

    def _released(self, node: int) -> list[int]:
        released = []
        for after in self.successors[node]:
            self.waiting[after] -= 1
            if self.waiting[after] == 0:
                released.append(after)
        return released
