"""Lower bounds on the time per micro-batch: the least cycle ratio over all states of a stage.

**Little's law for K places.** Give a stage K places. An F takes a place if one is free, and its
micro-batch leaves it when its B ends; one that finds none is in flight without a place. A
micro-batch with a place keeps it for at least its latency L = F + round trip + B. So over a long
time t the integral of N, the number of places taken, is at least L for each F that takes one. And N
is at most K, and less during some ops: let the excess of an op be its time times K − N. Then

    Σ L over the F's that take a place ≤ ∫ N ≤ K t − Σ excess of all ops

An order is a walk through the states of the stage (`stage_states`). Let an op cost its excess, and
an F that takes a place L besides. A walk costs at most K t, so with M micro-batches

    T = t / M ≥ (least cost of a cycle of states for each of its micro-batches) / K

With K the most in flight that fit, all have places: it is Little's law with the versions of each
op. With a smaller K, orders that hold more than K for a short time gain L only for the few
micro-batches without a place, and pay for the ops that make room for them.

The least ratio of cost to micro-batches over all cycles is found by Dinkelbach's iteration with
Bellman and Ford's algorithm (Lawler 1976, Combinatorial Optimization, section 3.13): if no cycle
costs less than a ratio for each micro-batch, it is the least; else such a cycle has a smaller one.

The bounds hold for all orders in which the stage takes its micro-batches in their order. Another
order could leave old micro-batches in flight forever, so that they all read one version.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from synth.costs.costs import IntArray
from synth.solver.flush_free.flush_free_problem import FlushFreeProblem
from synth.solver.flush_free.stage_states import InFlight, StageOp, StageStates, State
from synth.solver.instance.instance import STEP, B, F, Instance, W
from synth.solver.tuning import FLUSH_FREE


def stage_state_bound_us(
    flush_free: FlushFreeProblem, instance: Instance, index: int, known_us: float
) -> float:
    """The largest bound for a copy that is alone on its rank.

    Args:
        instance: the problem's instance, relaxed for fusion.

    Returns:
        At least the known bound, which is the answer where memory is no limit or the states are too
        many.
    """
    states = StageStates.of(flush_free, instance, index)
    if states is None:
        return known_us
    times = instance[index].duration_us
    latency_us = times[F] + instance.round_trip_us[index] + times[B]
    one_us = latency_us + instance[index].work_us + times[STEP]
    if one_us <= known_us * _most_in_turn(states):
        return known_us  # an order of these ops in turn is as fast
    places = most = _most_in_flight(states)
    while places > 0:
        graph = _graph(states, places, latency_us)
        ratio = None if graph is None else graph.least_ratio(known_us * places)
        is_larger = ratio is not None and ratio > known_us * places
        if ratio is not None and is_larger:
            known_us = float(ratio / places)
        elif graph is None or places < most:
            break  # fewer places make more states
        places -= 1
    return known_us


def _most_in_flight(states: StageStates) -> int:
    """The most micro-batches in flight in any state; 0 if none fits, or there are too many."""
    found = _reached(states, 0) or ()
    return max((len(state.in_flight) for state in found), default=0)


@dataclass(frozen=True)
class _Graph:
    """The ops between states as arrays, sorted by the state after them.

    Attributes:
        source: the state before, by number.
        count: 1 for B's, which count the micro-batches.
    """

    source: IntArray
    target: IntArray
    cost_us: IntArray
    count: IntArray

    def least_ratio(self, known: float) -> Fraction | None:
        """The least cost of a cycle for each B in it, or any such cost up to `known`.

        None: it is not found within the limit of passes.
        """
        ratio = Fraction(int(self.cost_us.sum()))
        for _ in range(FLUSH_FREE.most_cycles):
            cycle = self._cheaper_cycle(ratio)
            if cycle is None:
                return None
            if not len(cycle):
                return ratio
            ratio = Fraction(int(self.cost_us[cycle].sum()), int(self.count[cycle].sum()))
            if ratio <= known:
                return ratio
        return None

    def _cheaper_cycle(self, ratio: Fraction) -> IntArray | None:
        """The ops of a cycle that costs less than a ratio for each B; empty if there is none.

        None: that is not known after the limit of passes, or sums would not fit into 64 bits.
        """
        num_states = int(max(self.source.max(), self.target.max())) + 1
        largest = int(self.cost_us.max()) * ratio.denominator + ratio.numerator
        if largest * num_states > np.iinfo(np.int64).max:
            return None
        weight = self.cost_us * ratio.denominator - self.count * ratio.numerator
        first = np.flatnonzero(np.diff(self.target, prepend=-1))
        reached = self.target[first]
        lengths = np.diff(first, append=len(weight))
        length, parent = np.zeros(num_states, dtype=np.int64), np.full(num_states, -1)
        for turn in range(1, FLUSH_FREE.most_passes + 1):
            by_op = length[self.source] + weight
            least = np.minimum.reduceat(by_op, first)
            is_less = least < length[reached]
            if not is_less.any():
                return np.empty(0, dtype=np.int64)
            is_best = by_op == np.repeat(least, lengths)
            places = np.where(is_best, np.arange(len(weight)), len(weight))
            best = np.minimum.reduceat(places, first)
            length[reached[is_less]] = least[is_less]
            parent[reached[is_less]] = best[is_less]
            if turn % FLUSH_FREE.passes_before_cycle == 0:
                cycle = self._cycle(parent)
                if cycle is not None:
                    return cycle
        return None

    def _cycle(self, parent: IntArray) -> IntArray | None:
        """The ops of a cycle among the last ops of shortest walks; None if there is none."""
        num_states = len(parent)
        before = np.append(np.where(parent < 0, num_states, self.source[parent]), num_states)
        far = before
        for _ in range(num_states.bit_length()):
            far = far[far]
        on_cycle = far[far < num_states]
        if not len(on_cycle):
            return None
        state = start = int(on_cycle[0])
        ops: list[int] = []
        while not ops or state != start:
            ops.append(int(parent[state]))
            state = int(before[state])
        return np.array(ops)


def _most_in_turn(states: StageStates) -> int:
    """The most micro-batches in flight with which B, W and F can take turns."""
    for number in range(states.most, 0, -1):
        state = State((InFlight(is_first=True, has_place=False),) * number, 0, 0)
        for kind in (B, W, F):
            after = {move.kind: move.after for move in states.moves(state, 0)}
            if kind not in after:
                break
            state = after[kind]
        else:
            return number
    return 0


def _reached(states: StageStates, places: int) -> dict[State, list[StageOp]] | None:
    """All states that are reached, with the ops in them; None: they are too many."""
    left = list(states.starts())
    found: dict[State, list[StageOp]] = {}
    while left:
        state = left.pop()
        if state in found:
            continue
        found[state] = list(states.moves(state, places))
        left += [move.after for move in found[state]]
        if len(found) > FLUSH_FREE.most_states:
            return None
    return found


def _graph(states: StageStates, places: int, latency_us: int) -> _Graph | None:
    """The ops in all states; None: these are too many."""
    found = _reached(states, places)
    if found is None:
        return None
    number = {state: place for place, state in enumerate(found)}
    ops = sorted(
        (
            number[move.after],
            number[state],
            _cost_us(state, move, places, latency_us),
            int(move.kind == B),
        )
        for state, moves in found.items()
        for move in moves
    )
    target, source, cost, count = np.array(ops, dtype=np.int64).reshape(-1, 4).T
    return _Graph(source, target, cost, count)


def _cost_us(state: State, move: StageOp, places: int, latency_us: int) -> int:
    """The excess of an op, and the latency if it is an F that takes a place."""
    # A micro-batch has its place from the start of its F to the end of its B.
    most = move.after if move.kind == F else state
    taken = sum(one.has_place for one in most.in_flight)
    takes = move.kind == F and move.after.in_flight[-1].has_place
    return move.us * (places - taken) + latency_us * takes
