"""A lower bound on every schedule that keeps activations or moves them to the host's memory.

Without memory limits a schedule is at least as fast with its moves left out, so bounds without
limits hold. With limits, a rank with a headroom of H bytes holds at most H T byte-µs in T µs:

    Σ bytes · least lifetime + Σ rise of F · F − Σ moved · bytes · (L − 2 t − B)  ≤  H T
    Σ moved · t  ≤  T                                   on the link in each direction

Moved are micro-batches of a stage.
An activation that lives L µs from F to B is on its rank for no less than a move away and one back,
t µs each, and its B. The least T for which some numbers of moved micro-batches fulfil both is a
linear programme with one knapsack constraint, whose optimum takes the stages by what a move saves
per µs of the link (Dantzig 1957, "Discrete-variable extremum problems"). Little's law is the case
without moves.
"""

from dataclasses import replace
from typing import NamedTuple

from synth.objective import Spans
from synth.solver.bounds.closed_form import work_bounds
from synth.solver.instance.instance import B, F, Instance
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.problem import Problem


class _Movable(NamedTuple):
    """A stage's micro-batches: their number, the byte-µs that a move saves, and its time."""

    num: int
    saved_byte_us: int
    move_us: int


def offload_bounds(problem: Problem) -> Spans:
    """Return bounds of makespan and period over schedules that may move activations to the host.

    Those that move them to other ranks are not covered where memory counts. Copies of a stage may
    share micro-batches in other ways than the problem says, so with copies the bounds are 0.
    """
    if problem.num_replicas > 1:
        return Spans(0, 0)
    free = work_bounds(relaxed_for_fusion(replace(problem, caps_bytes=None)))
    if problem.caps_bytes is None or problem.costs.links.host is None:
        return free
    instance = relaxed_for_fusion(problem)
    of_ranks = [_of_rank(problem, instance, rank) for rank in range(instance.num_ranks)]
    return Spans.most([free, *of_ranks])


def offload_bound_us(problem: Problem) -> int:
    """Return the bound of the objective."""
    return problem.objective.value_us(offload_bounds(problem))


def _of_rank(problem: Problem, instance: Instance, rank: int) -> Spans:
    """Return bounds by the memory and the host's links of a rank.

    Nothing is held before the first F reaches the rank, nor in its STEPs.
    """
    headroom, host = instance.headroom_bytes[rank], problem.costs.links.host
    if not headroom or host is None:
        return Spans(0, 0)
    needed, movable = _during_forwards(problem, instance, rank), []
    for lifetime in instance.lifetimes:
        copy = instance[lifetime.made[0]]
        if copy.rank != rank:
            continue
        life_us = instance.shortest_lifetime_us(lifetime)
        needed += copy.num_micro_batches * lifetime.num_bytes * life_us
        is_saved = lifetime.made == (lifetime.made[0], F) and lifetime.freed == (
            lifetime.made[0],
            B,
        )
        if is_saved and lifetime.num_bytes == problem.costs.stages[copy.stage].saved_bytes:
            move_us = host.transfer_us(lifetime.num_bytes)
            saves_us = life_us - 2 * move_us - copy.duration_us[B]
            if saves_us > 0 and lifetime.num_bytes:
                each = lifetime.num_bytes * saves_us
                movable.append(_Movable(copy.num_micro_batches, each, move_us))
    held_us = _least_us(needed, movable, headroom)
    head_us = min(instance.head_us[copy] for copy in instance.held[rank])
    origin_us = head_us if instance.origins_us is None else instance.origins_us[rank]
    ends_us = head_us + held_us + instance.step_us(rank)
    return Spans(ends_us, ends_us - origin_us)


def _during_forwards(problem: Problem, instance: Instance, rank: int) -> int:
    """Return the byte-µs of what F's hold while they run, before lifetimes begin."""
    copies = (instance[index] for index in instance.held[rank])
    return sum(
        copy.num_micro_batches
        * copy.duration_us[F]
        * problem.costs.stages[copy.stage].rise_bytes[F]
        for copy in copies
    )


def _least_us(needed_byte_us: int, movable: list[_Movable], headroom_bytes: int) -> int:
    """Return the least time in which memory and link suffice."""
    order = sorted(movable, key=lambda one: -one.saved_byte_us / max(1, one.move_us))

    def suffices(time_us: int) -> bool:
        left_us, byte_us = float(time_us), float(needed_byte_us)
        for one in order:
            count = min(float(one.num), left_us / one.move_us) if one.move_us else one.num
            left_us -= count * one.move_us
            byte_us -= count * one.saved_byte_us
        # Rounding of sums of floats must not raise the bound.
        return byte_us <= headroom_bytes * time_us * (1 + 1e-9)

    low, high = 0, -(-needed_byte_us // headroom_bytes)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle + 1, high)
    return low
