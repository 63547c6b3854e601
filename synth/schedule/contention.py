"""Simulation of ranks that share processors: what a small machine can make of a schedule.

The plan assumes a device per rank. Where several ranks share processors (four processes on two
cores, two ranks on one GPU) their ops slow each other down: with n ops running on P processors
each progresses at rate min(1, P / n). Transfers are not slowed.
"""

from synth.schedule.lower import Lowered
from synth.schedule.simulate import Timeline


def simulate_shared(lowered: Lowered, num_processors: int) -> Timeline:
    """Simulate with fair sharing of `num_processors` among the compute ops that run.

    With at least as many processors as ranks this equals `simulate`, up to rounding. The lowered
    form must be free of deadlock (`verify` proves it).
    """
    return _Fluid(lowered, num_processors).run()


class _Fluid:
    """Event by event: the next event is the first node to have no work left."""

    def __init__(self, lowered: Lowered, num_processors: int) -> None:
        self.lowered = lowered
        self.num_processors = num_processors
        self.num_ops = lowered.first_node[-1]
        self.left = [float(duration) for duration in lowered.durations_us]
        self.waiting = [len(before) for before in lowered.predecessors]
        self.successors: list[list[int]] = [[] for _ in self.left]
        for node, before in enumerate(lowered.predecessors):
            for other in before:
                self.successors[other].append(node)
        self.running: set[int] = {n for n, count in enumerate(self.waiting) if count == 0}

    def run(self) -> Timeline:
        now = 0.0
        start = [0] * len(self.left)
        end = [0] * len(self.left)
        while self.running:
            step, rate = self._next_event()
            now += step
            done = []
            for node in self.running:
                self.left[node] -= step * (rate if node < self.num_ops else 1.0)
                if self.left[node] <= 1e-6:
                    done.append(node)
            for node in done:
                self.running.remove(node)
                end[node] = round(now)
                for after in self._released(node):
                    start[after] = round(now)
                    self.running.add(after)
        return Timeline(self.lowered, start, end)

    def _next_event(self) -> tuple[float, float]:
        """Time until the first running node ends, and the rate at which ops progress until then."""
        active = sum(1 for n in self.running if n < self.num_ops and self.left[n] > 0)
        rate = min(1.0, self.num_processors / active) if active else 1.0
        step = min(self.left[n] / (rate if n < self.num_ops else 1.0) for n in self.running)
        return step, rate

    def _released(self, node: int) -> list[int]:
        released = []
        for after in self.successors[node]:
            self.waiting[after] -= 1
            if self.waiting[after] == 0:
                released.append(after)
        return released
