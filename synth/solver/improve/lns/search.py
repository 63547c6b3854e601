"""Large-neighbourhood search over windows of time (Shaw 1998): ops outside keep their order.

Some windows are short and free on all ranks, others long and free on a few ranks only.
"""

import math
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from synth.objective import Objective
from synth.solver.improve.lns.size_bandit import Arm, SizeBandit, WindowSize
from synth.solver.improve.lns.window_model import Change, Required, Window, required_by
from synth.solver.instance.earliest_start import EarliestStart
from synth.solver.instance.event_graph import CyclicOrders, Graph
from synth.solver.instance.instance import Instance
from synth.solver.instance.tails import tails_of
from synth.solver.instance.timing import Orders, TimedOrders
from synth.solver.tuning import WINDOWS

_SIZES = tuple(WindowSize(*size) for size in WINDOWS.sizes)


@dataclass(frozen=True)
class EffortLimits:
    """The end of a search, in effort: counted steps that take about as many seconds.

    Attributes:
        seconds: the effort of each worker.
        workers: windows solved at a time. A result is kept if no other has changed its ops; with
            one worker the search is repeatable.
        should_stop: polled; True ends the search.
        patience_s: the search ends after this effort without a gain.
    """

    seconds: float
    workers: int
    should_stop: Callable[[], bool]
    patience_s: float = math.inf


class LnsResult(NamedTuple):
    """The best solution, the effort of each worker, and True if no window is left to try."""

    timing: TimedOrders
    spent_s: float
    is_exhausted: bool


def improve(
    instance: Instance,
    objective: Objective,
    timings: Sequence[TimedOrders],
    limits: EffortLimits,
    seed: int,
    on_better: Callable[[TimedOrders], None],
) -> LnsResult:
    """Re-solve windows of solutions without BW; never gets worse than the best.

    All of them get a few small windows; then the best one gets windows of all sizes. A window is
    kept if the whole gets no worse: moves between equals lead out of local optima. The search ends
    when windows gain nothing more.

    Args:
        instance: gives times, memory and limits.
        objective: the time to minimize.
        timings: the solutions to begin with.
        limits: the effort, and the number of workers.
        seed: of the choice of windows.
        on_better: called for each solution that is better than all before.
    """
    workers, should_stop = limits.workers, limits.should_stop
    seconds = limits.seconds * workers
    effort = _Effort(seconds, should_stop, limits.patience_s * workers)
    graph = Graph(instance)
    required = required_by(graph)
    searches = [
        _Search(graph, required, objective, timing.orders(instance), seed) for timing in timings
    ]
    best = min(searches, key=lambda search: search.earliest_start.value_us)
    best_us = best.earliest_start.value_us

    def tell(search: _Search) -> None:
        nonlocal best_us
        if search.earliest_start.value_us < best_us:
            best_us = search.earliest_start.value_us
            effort.gained()
            on_better(search.earliest_start.timing)

    if len(searches) > 1:
        for search in searches:
            share = _Effort(seconds * WINDOWS.race_share / len(searches), should_stop, math.inf)
            effort.seconds_left -= share.seconds_left
            search.improve(WINDOWS.race_ops, share, tell, workers)
            effort.seconds_left += share.seconds_left
        best = min(searches, key=lambda search: search.earliest_start.value_us)
        effort.gained()
    is_exhausted = best.improve(
        max(WINDOWS.always_ops, instance.num_ops // 2), effort, tell, workers
    )
    spent_s = (seconds - effort.seconds_left) / workers
    return LnsResult(best.earliest_start.timing, spent_s, is_exhausted)


@dataclass
class _Effort:
    """The effort left, in approximate seconds, and the patience without a gain."""

    seconds_left: float
    should_stop: Callable[[], bool]
    patience_s: float

    def __post_init__(self) -> None:
        self.gained()

    def gained(self) -> None:
        """Restart the patience."""
        self._idle_below_s = self.seconds_left - self.patience_s

    def is_spent(self) -> bool:
        """Return True if the search should end."""
        least_s = max(0.0, self._idle_below_s)
        return self.seconds_left <= least_s or self.should_stop()


_Running: TypeAlias = dict[Future[list[Change]], tuple[Window, Arm]]


class _Search:
    """The current solution and its tails."""

    def __init__(
        self, graph: Graph, required: Required, objective: Objective, orders: Orders, seed: int
    ) -> None:
        self.graph, self.required, self.objective = graph, required, objective
        self.rng = random.Random(seed)
        numbered = [graph.numbered(order)[0] for order in orders]
        self._use(EarliestStart(graph, objective, numbered))
        self.bandit = SizeBandit(_SIZES, self.earliest_start.value_us, len(graph.nodes))

    def _use(self, earliest_start: EarliestStart) -> None:
        self.earliest_start, self.tails = (
            earliest_start,
            list(tails_of(earliest_start, self.objective)),
        )

    def improve(
        self, most_ops: int, effort: _Effort, tell: Callable[["_Search"], None], workers: int
    ) -> bool:
        """Re-solve windows of at most `most_ops`; return True if none is left to try."""
        running: _Running = {}
        ending = threading.Event()
        with ThreadPoolExecutor(workers, "window") as pool:
            try:
                while True:
                    if effort.is_spent():
                        ending.set()
                    while not ending.is_set() and len(running) < workers:
                        if not self._begin(most_ops, running, pool, ending):
                            break
                    if not running:
                        return not ending.is_set()
                    for future in wait(running, WINDOWS.poll_s, FIRST_COMPLETED).done:
                        effort.seconds_left -= self._take(*running.pop(future), future.result())
                        tell(self)
            finally:
                ending.set()

    def _begin(
        self, most_ops: int, running: _Running, pool: Executor, ending: threading.Event
    ) -> bool:
        """Start solving one more window; return False if no size is left to try."""
        arm = self.bandit.choose(self.rng, most_ops)
        if arm is None:
            return False
        window = self._window(arm.window_size, [window for window, _ in running.values()])
        seed = self.rng.randrange(1 << 30)
        future = pool.submit(window.solve, arm.window_size.seconds, seed, ending.is_set)
        running[future] = window, arm
        return True

    def _take(self, window: Window, arm: Arm, changes: Sequence[Change]) -> float:
        """Keep changes that do not worsen the whole; return the effort of the window."""
        before_us = self.earliest_start.value_us
        earliest_start = self._changed(changes)
        if earliest_start is not None and earliest_start.value_us <= before_us:
            self._use(earliest_start)
        spent_s = window.spent_s + WINDOWS.build_s_per_op * len(window.ops)
        if changes:
            spent_s += WINDOWS.evaluate_s_per_op * len(self.graph.nodes)
        self.bandit.learn(arm, before_us - self.earliest_start.value_us, spent_s)
        return spent_s

    def _changed(self, changes: Sequence[Change]) -> EarliestStart | None:
        """Return the solution with changes; None without any, or if their ops have changed."""
        if not changes:
            return None
        orders = list(self.earliest_start.orders)
        for change in changes:
            order = change.apply(orders[change.rank])
            if order is None:
                return None
            orders[change.rank] = order
        try:
            return EarliestStart(self.graph, self.objective, orders)
        except CyclicOrders:  # ops of no duration in a wrong order
            return None

    def _window(self, window_size: WindowSize, others: Sequence[Window]) -> Window:
        """Draw a window of a size, if possible without ops of windows being solved."""
        for _ in range(WINDOWS.draws):
            ops, free = self._draw(window_size.num_ops)
            if all(other.ops.isdisjoint(ops) for other in others):
                break
        return Window(self.earliest_start, self.tails, self.required, ops, free)

    def _draw(self, num_ops: int) -> tuple[list[int], frozenset[int]]:
        """Return a run of the sequence around a random moment, and the free ranks."""
        num_ranks = len(self.earliest_start.orders)
        free = frozenset(range(num_ranks))
        if num_ranks > WINDOWS.free_ranks and self.rng.randrange(WINDOWS.narrow_every) == 0:
            first_rank = self.rng.randrange(num_ranks - WINDOWS.free_ranks + 1)
            free = frozenset(range(first_rank, first_rank + WINDOWS.free_ranks))
            num_ops = min(num_ops * num_ranks // (2 * WINDOWS.free_ranks), WINDOWS.longest_ops)
        sequence = self.earliest_start.sequence
        first = self.rng.randrange(-num_ops // 2, max(1, len(sequence) - num_ops // 2))
        return sequence[max(0, first) : first + num_ops], free
