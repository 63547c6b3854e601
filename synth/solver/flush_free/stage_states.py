"""The states of a stage that is alone on its rank, and the ops that lead from one to another.

A state is what memory depends on: the micro-batches in flight, F begun and B not ended, oldest
first; those that wait for their W; and what is needed to count stashed versions. All orders in
which the stage takes its micro-batches in their order are walks through these states:

    F   one more is in flight, the youngest
    B   the oldest is no longer in flight, and waits for its W
    W   one fewer waits; the update follows directly if it is the last W of its batch

An op is possible if its peak fits beside the stashed versions, as in the modulo model.

**Stashed weights.** Micro-batches whose F's have no update between them read one version. All
versions that are in flight are stashed but the newest, which is not once an update has replaced it.
Vertical sync is the same on the first stage, whose versions the others read.

**Two versions (2BW)** with an update every k. With b B's and w W's done, a version is stashed
unless all B's of a batch have ended whose update is still to come: ⌊w / k⌋ < ⌊b / k⌋. Micro-batch f
begins if ⌊w / k⌋ ≥ ⌊f / k⌋ − 1. At first there are no updates and fewer versions, so walks begin in
any state that fits.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from synth.op_kinds import OpKind
from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.instance.instance import STEP, B, F, Instance, W
from synth.solver.instance.stage_copy import StageCopy


class InFlight(NamedTuple):
    """A micro-batch in flight.

    Attributes:
        is_first: it is the oldest in flight that reads its version. Only stashed weights tell
            versions apart.
        has_place: it takes one of the places of `stage_state_bound`.
    """

    is_first: bool
    has_place: bool


class State(NamedTuple):
    """A state between two ops.

    Attributes:
        in_flight: oldest first.
        waiting: micro-batches that wait for their W.
        phase: with stashed weights 1 if an update has replaced the version that the youngest in
            flight read, else 0; with 2BW the number of B's done, modulo k.
    """

    in_flight: tuple[InFlight, ...]
    waiting: int
    phase: int


class StageOp(NamedTuple):
    """An op that is possible in a state, its time with that of an update, and the state after."""

    kind: OpKind
    us: int
    after: State


class VersionRule(Protocol):
    """The part of a state that depends on the versions."""

    def begins(self, state: State) -> bool | None:
        """True if an F would read another version than the youngest; None: it cannot run yet."""

    def phase_after(self, kind: OpKind, state: State) -> int:
        """The phase after an op, given the others' part of the state after it."""

    def is_update(self, state: State) -> bool:
        """True if an update follows the next W."""

    def stashed(self, state: State) -> int:
        """The number of stashed versions."""


class _NoVersions:
    """F and B read the newest version."""

    def __init__(self, every: int) -> None:
        self._every = every

    def begins(self, state: State) -> bool | None:
        return False

    def phase_after(self, kind: OpKind, state: State) -> int:
        return 0

    def is_update(self, state: State) -> bool:
        # W's of a batch are not told apart, so updates after several take no time here.
        return self._every == 1

    def stashed(self, state: State) -> int:
        return 0


class _StashedWeights:
    """F reads the newest version, B that of its F, and an update follows each W."""

    def begins(self, state: State) -> bool | None:
        return state.phase == 1 or not state.in_flight

    def phase_after(self, kind: OpKind, state: State) -> int:
        if kind == F or not state.in_flight:
            return 0
        return 1 if kind == W else state.phase

    def is_update(self, state: State) -> bool:
        return True

    def stashed(self, state: State) -> int:
        versions = sum(one.is_first for one in state.in_flight)
        return versions - 1 + state.phase if versions else 0


class _TwoVersions:
    """F and B read the version before that of their batch, and an update follows k W's."""

    def __init__(self, every: int) -> None:
        self._every = every

    def begins(self, state: State) -> bool | None:
        number = state.phase + len(state.in_flight)
        return False if self._updates(state) >= number // self._every - 1 else None

    def phase_after(self, kind: OpKind, state: State) -> int:
        return (state.phase + (kind == B)) % self._every

    def is_update(self, state: State) -> bool:
        return (state.phase - state.waiting + 1) % self._every == 0

    def stashed(self, state: State) -> int:
        return int(self._updates(state) >= state.phase // self._every)

    def _updates(self, state: State) -> int:
        return (state.phase - state.waiting) // self._every


def _rule_of(flush_free: FlushFreeProblem) -> VersionRule:
    match flush_free.consistency:
        case Consistency.NONE:
            return _NoVersions(flush_free.every)
        case Consistency.TWO_VERSIONS:
            return _TwoVersions(flush_free.every)
        case Consistency.STASH | Consistency.VERTICAL:
            return _StashedWeights()


@dataclass(frozen=True)
class StageStates:
    """The states of a stage.

    Attributes:
        copy: its stage copy, relaxed for fusion.
        headroom: bytes above the static ones.
        most: the most micro-batches in flight that memory allows without versions.
        every: micro-batches of an update.
    """

    copy: StageCopy
    headroom: int
    most: int
    version_bytes: int
    every: int
    rule: VersionRule

    @classmethod
    def of(
        cls, flush_free: FlushFreeProblem, instance: Instance, index: int
    ) -> "StageStates | None":
        """The states of a copy; None: memory leaves them unlimited, or another stage matters.

        Args:
            instance: the problem's instance, relaxed for fusion.
            index: a copy that is alone on its rank.
        """
        most, headroom = instance.headroom_in_forwards(index), instance.headroom_of(index)
        copy, every = instance[index], flush_free.every
        waits = copy.delta_bytes[F] + copy.delta_bytes[B]
        is_limited = waits > 0 or flush_free.consistency == Consistency.TWO_VERSIONS
        is_of_another = flush_free.consistency == Consistency.VERTICAL and copy.above is not None
        if most is None or headroom is None or is_of_another or not is_limited:
            return None
        size = flush_free.problem.costs.stages[copy.stage].parameter_bytes
        return cls(copy, headroom, most, size, every, _rule_of(flush_free))

    @classmethod
    def walked(cls, flush_free: FlushFreeProblem, instance: Instance, index: int) -> "StageStates":
        """The states of a copy for an order that walks through a few of them, limited or not.

        With vertical sync those of stages after the first count no versions, as these depend on the
        first stage.

        Args:
            instance: the problem's instance.
            index: a copy that is alone on its rank.
        """
        copy, headroom = instance[index], instance.headroom_of(index)
        most = instance.headroom_in_forwards(index)
        size = flush_free.problem.costs.stages[copy.stage].parameter_bytes
        is_vertical = flush_free.consistency == Consistency.VERTICAL
        is_of_another = is_vertical and copy.above is not None
        return cls(
            copy,
            sys.maxsize if headroom is None else headroom,
            copy.num_micro_batches if most is None else most,
            size,
            flush_free.every,
            _NoVersions(flush_free.every) if is_of_another else _rule_of(flush_free),
        )

    def starts(self) -> Iterable[State]:
        """States from which every order can be walked, but for its first micro-batches."""
        if not isinstance(self.rule, _TwoVersions):
            return [State((), 0, 0)]
        return self._that_fit()

    def _that_fit(self) -> Iterator[State]:
        """All states of 2BW that fit, with no micro-batch that has a place."""
        for number in range(self.most + 1):
            in_flight = (InFlight(is_first=False, has_place=False),) * number
            for waiting in range(2 * self.every):
                for phase in range(self.every):
                    state = State(in_flight, waiting, phase)
                    if self._bytes(state) <= self.headroom:
                        yield state

    def moves(self, state: State, places: int) -> Iterator[StageOp]:
        """Yield the possible ops; an F takes a place if one of `places` is free."""
        times, in_flight = self.copy.duration_us, state.in_flight
        begins = self.rule.begins(state)
        if begins is not None and len(in_flight) < self.most and self._fits(F, state):
            has_place = sum(one.has_place for one in in_flight) < places
            began = (*in_flight, InFlight(begins, has_place))
            yield StageOp(F, times[F], self._after(F, state._replace(in_flight=began)))
        if in_flight and self._fits(B, state):
            left = in_flight[1:]
            if left and in_flight[0].is_first:
                left = (left[0]._replace(is_first=True), *left[1:])
            ended = state._replace(in_flight=left, waiting=state.waiting + 1)
            yield StageOp(B, times[B], self._after(B, ended))
        if state.waiting and self._fits(W, state):
            after = self._after(W, state._replace(waiting=state.waiting - 1))
            if not self.rule.is_update(state):
                yield StageOp(W, times[W], after)
            elif self._fits(STEP, after):
                yield StageOp(W, times[W] + times[STEP], after)

    def _after(self, kind: OpKind, state: State) -> State:
        return state._replace(phase=self.rule.phase_after(kind, state))

    def _fits(self, kind: OpKind, state: State) -> bool:
        return self._bytes(state) + self.copy.peak_above_bytes[kind] <= self.headroom

    def _bytes(self, state: State) -> int:
        delta = self.copy.delta_bytes
        waits = max(0, delta[F] + delta[B])
        kept = len(state.in_flight) * delta[F] + state.waiting * waits
        return kept + self.rule.stashed(state) * self.version_bytes
