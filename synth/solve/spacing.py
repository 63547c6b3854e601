"""How far apart k forwards of the first stage must be, proven from k micro-batches alone.

    rank 0 | F .. .. .. F .. .. .. F .. .. .. F .. B .. W |
           |<-- g(k) -->|<-- g(k) -->|<-- g(j) -->|<-tail->|

Whatever a schedule does, any k + 1 consecutive micro-batches of it keep the caps without the
others, and wait for nothing more without them: so from one's F to the k-th after it there is at
least g(k), the least that there is where they are alone. Such spacings add up to a bound for any
number of micro-batches, and each of them, wherever it may begin, helps to prove the next one, and
whatever is asked of all micro-batches.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ortools.sat.python import cp_model

from synth.objective import Objective
from synth.solve.cpsat import Model
from synth.solve.problem import SolveOptions
from synth.solve.run_cpsat import Outcome, TimedBounds, run, search_from_below
from synth.solve.solution import Solution
from synth.solve.view import SPLIT, B, F, Slot, View, W

# With fewer micro-batches models of all of them say soon what there is to say.
_FEWEST = 24

# Up to so many forwards every length is asked for, and all ranks are looked at where they have no
# more ops than this: larger models take long to build. Beyond, lengths grow by a share.
_DENSE = 40
_MOST_OPS = 3_000
_STEP_SHARE = 0.2

# The longest stretch, as a share of all micro-batches.
_LONGEST_SHARE = 0.6

# Of the time, the most for one length of some ranks.
_SHARE_OF_ONE = 0.3

# More than two ranks are asked where that may add such a share to what is known of all forwards:
# 23 of 8 ranks at half of 1F1B's memory take 5 s, and add 0.0002.
_LEAST_GAIN = 0.0005


def applies(view: View) -> bool:
    """Whether all micro-batches pass one chain of stages, one stage a rank, and no copies of it.

    Micro-batches that are left out must not have held less than nothing.
    """
    if any(len(held) != 1 for held in view.held) or any(chunk.replica for chunk in view.chunks):
        return False
    effects = (chunk.effect_bytes for chunk in view.chunks)
    return all(min(e[F], e[F] + e[B], e[F] + e[B] + e[W]) >= 0 for e in effects)


def is_worth(view: View) -> bool:
    """Whether micro-batches are many and memory is limited."""
    limited = any(room is not None for room in view.room_bytes)
    return applies(view) and limited and view.chunks[0].num_micro_batches >= _FEWEST


def lengths(view: View) -> Iterator[int]:
    """One, then all that memory does not take at once; of the longest but few."""
    yield 1
    longest = max(1, round(_LONGEST_SHARE * view.chunks[0].last))
    length = max(2, view.most_forwards(0))
    while length <= longest:
        yield length
        is_dense = length < _DENSE and _of_all_ranks(view, length)
        length += 1 if is_dense else max(1, round(_STEP_SHARE * length))


def _of_all_ranks(view: View, length: int) -> bool:
    """Whether a stretch of all ranks is a model that can be built in passing."""
    return len(SPLIT) * view.num_ranks * (length + 1) <= _MOST_OPS


def added_us(least_us: Mapping[int, int], length: int) -> int:
    """The most that known spacings add up to."""
    return _best_and_sums(least_us, length)[0][length]


def _best_and_sums(least_us: Mapping[int, int], longest: int) -> tuple[list[int], list[int]]:
    """For each length the most that is known, and the most that shorter ones add up to."""
    best, sums = [0], [0]
    for end in range(1, longest + 1):
        sums.append(max((best[k] + best[end - k] for k in range(1, end // 2 + 1)), default=0))
        best.append(max(least_us.get(end, 0), sums[end]))
    return best, sums


def keep_apart(model: Model, least_us: Mapping[int, int]) -> None:
    """No two forwards of the first stage are nearer in a model than is known."""
    count = model.view.chunks[0].num_micro_batches
    forwards = [model.start[0, Slot(F, k)] for k in range(count)]
    _, sums = _best_and_sums(least_us, max(least_us, default=0))
    for length, apart_us in least_us.items():
        if apart_us > sums[length]:  # else shorter ones say so already
            for first, second in zip(forwards, forwards[length:], strict=False):
                model.cp.add(second >= first + apart_us)


@dataclass
class Spacing:
    """The spacings of a view, shortest first.

    Attributes:
        reference: a schedule, asked for whenever a length begins; where its forwards are no farther
            apart than is proven, there is nothing to prove.
        least_us: for each number of forwards, what is proven.
    """

    view: View
    options: SolveOptions
    reference: Callable[[], Solution | None]
    should_stop: Callable[[], bool]
    least_us: dict[int, int] = field(default_factory=dict)

    def bounds(self, objective: Objective, limit_s: float) -> TimedBounds:
        """Bounds of the whole, as spacings become known, until one takes too long.

        Args:
            limit_s: seconds of the clock, or deterministic ones.
        """
        left_s = limit_s
        for length in lengths(self.view):
            if left_s <= 0 or self.should_stop():
                break
            sum_us = added_us(self.least_us, length)
            nearest_us = self._nearest_us(length)
            for place, scope in enumerate(self._scopes(length)):
                known_us = max(sum_us, self.least_us.get(length, 0))
                if not self._is_of_use(length, known_us, nearest_us, is_quick=place == 0):
                    break
                outcome = self._prove(length, scope, min(left_s, _SHARE_OF_ONE * limit_s))
                left_s -= outcome.spent_s
                self.least_us[length] = max(known_us, outcome.bound_us)
                yield objective.iterations * (self._added_us() + self._tail_us())
                if left_s <= 0 or self.should_stop() or not outcome.optimal:
                    return limit_s - left_s
        return limit_s - left_s

    def _is_of_use(
        self, length: int, known_us: int, nearest_us: int | None, *, is_quick: bool
    ) -> bool:
        """Whether to ask for more; where that takes long, if it alone may add up to more.

        A guess: a length that adds nothing might help to prove another one.
        """
        if nearest_us is None or nearest_us <= known_us:
            return nearest_us is None
        most_us = {**self.least_us, length: nearest_us}
        return is_quick or self._added_us(most_us) > (1 + _LEAST_GAIN) * self._added_us()

    def _added_us(self, least_us: Mapping[int, int] | None = None) -> int:
        """What spacings add up to for all forwards: those that are proven, or others."""
        return added_us(self.least_us if least_us is None else least_us, self.view.chunks[0].last)

    def _tail_us(self) -> int:
        """From the start of the last F to the end of its rank: the round trip, B, W, STEP."""
        first = self.view.chunks[0]
        return first.work_us + self.view.round_trip_us[0] + self.view.step_us(first.rank)

    def _prove(self, length: int, scope: Iterable[int], limit_s: float) -> Outcome:
        """Prove how far apart the first and the last of so many and one are, by some ranks."""
        began_s = time.monotonic()
        few = tuple(c._replace(num_micro_batches=length + 1) for c in self.view.chunks)
        model = _Apart(replace(self.view, chunks=few), scope, self.least_us)
        return run(model, self.options, limit_s, should_stop=self.should_stop, began_s=began_s)

    def _scopes(self, length: int) -> Iterator[tuple[int, ...]]:
        """Two ranks, which take next to no time; should it be of use, all, or a few of too many.

        Memory is short longest on the first stages' ranks; some far away have to agree with them.
        """
        size = self.view.num_ranks
        far = 5 * size // 8
        two, few = {0, far}, {0, min(1, size - 1), size // 4, far}
        more = set(range(size)) if _of_all_ranks(self.view, length) else few
        for stages in (two, more) if more != two else (two,):
            yield tuple(sorted(self.view[stage].rank for stage in stages))

    def _nearest_us(self, length: int) -> int | None:
        """How far apart so many forwards of the reference are, where they are nearest."""
        reference = self.reference()
        if reference is None:
            return None
        count = self.view.chunks[0].num_micro_batches
        at = [reference.starts[0, Slot(F, k)] for k in range(count)]
        return min(later - earlier for earlier, later in zip(at, at[length:], strict=False))


class _Apart(Model):
    """Minimises the time from the first forward of the first stage to the last one."""

    def __init__(self, view: View, scope: Iterable[int], known_us: Mapping[int, int]) -> None:
        self._known_us = known_us
        each_us = sum(c.work_us + c.down_us + c.up_us for c in view.chunks)
        steps_us = sum(map(view.step_us, range(view.num_ranks)))
        # As long as one op after the other: that is never too short.
        longest_us = each_us * view.chunks[0].num_micro_batches + steps_us
        super().__init__(view, Objective.MAKESPAN, longest_us, scope)

    def tune(self, parameters: cp_model.SatParameters) -> None:
        """From below: the least is asked for, and how it looks is of no use."""
        search_from_below(parameters)

    def minimise(self) -> None:
        """No two forwards are nearer than is known."""
        keep_apart(self, self._known_us)
        self.cp.add(self.start[0, Slot(F, 0)] == 0)
        self.spans = []
        self.value = self.cp.new_int_var(0, self.horizon_us, "apart")
        self.cp.add(self.value == self.start[0, Slot(F, self.view.chunks[0].last)])
        self.cp.minimize(self.value)
