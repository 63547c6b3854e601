"""V-shaped schedules within memory limits: the shortest of several generators at many limits.

Each generator makes schedules at fixed limits, counted in activations of a stage per rank:

    greedy            ZB-V's (`v_greedy.py`), with each stage's own times and bytes, and with their
                      means as released, from 2D activations on
    ZB-V              the drawn order fitted to the times (`reorder.py`), from 2D on
    V-Half and V-Min  likewise, from their own memory to 2D

Of the schedules whose exact peaks keep the memory limits, the one of the least exact value of the
objective (the period by default) is taken, and of equal ones that of the lowest limit. The
generators' limits do not depend on the memory limits, so larger memory limits only add schedules to
choose from: the value never rises with them.
Sources: Qi et al. 2023, arXiv 2401.10241; 2024, arXiv 2405.15362.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from synth.errors import SynthError
from synth.families import v_half, v_min, zb_v
from synth.families._lib.activations import peak_activation_bytes
from synth.families._lib.buffering_choice import BufferingOutcome, outcome_of, patient, unlimited
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.fit_to_caps import left_bytes
from synth.families._lib.reorder import fitted_below
from synth.families._lib.v_greedy import (
    ALL_CHOICES,
    NoRoomError,
    RunsByChoice,
    VGreedyChoices,
    VGreedyRun,
    repeated_run,
)
from synth.families._lib.v_passes import PassCosts, averaged, costs_by_pass, units_bytes
from synth.families._lib.v_shape import Drawn, drawn
from synth.families.zb_v_greedy import most_activations
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import exceeds_caps

# Ops that one greedy may run, at all limits between 1F1B's memory and twice that together; about
# 1 µs each, eight times over. Limits lie 1, 2, 4, … activations apart, as that allows, and D / 2
# at most.
_MOST_GREEDY_OPS = 150_000

# Ops of a schedule up to which drawn orders are fitted at limits D / 4 and D activations apart,
# beyond that 2D. Each takes about 0.1 ms per op unless it is stopped early.
_OPS_FOR_QUARTERS, _OPS_FOR_WHOLES = 3_000, 8_000


def make(setting: Setting) -> Programs:
    """The schedule of the least value of the objective among all that keep the memory limits.

    Raises:
        SynthError: there is none.
    """
    search = _Search(setting)
    search.try_greedy()
    search.try_drawn()
    if search.programs is None:
        raise SynthError(
            "zb-v-limit found no schedule within the memory limits; give at least the peak of "
            "v-min, the schedule with the least memory that it tries"
        )
    return search.programs


class _Search:
    """The best schedule so far within the memory limits."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.rooms = left_bytes(setting) if setting.caps_bytes is not None else None
        self.pass_costs = costs_by_pass(setting.costs, setting.num_micro_batches)
        self.programs: Programs | None = None
        self.value_us: int | None = None
        self._seen: set[tuple[tuple[Op, ...], ...]] = set()
        self._least_us = setting.objective.iterations * max(self.pass_costs.work_us)

    def try_greedy(self) -> None:
        """The greedy with all choices: on averaged costs as released, and on true ones."""
        same = averaged(self.pass_costs)
        self._try_runs(RunsByChoice(partial(self._released, same)), same)
        if same != self.pass_costs:
            self._try_runs(RunsByChoice(self._on_true_costs), self.pass_costs)

    def _try_runs(self, runs: RunsByChoice, pass_costs: PassCosts) -> None:
        units = units_bytes(pass_costs)
        for choices in ALL_CHOICES:
            self._go_up(units, partial(runs.at, choices=choices))

    def _released(
        self, pass_costs: PassCosts, limits_bytes: Sequence[int], choices: VGreedyChoices
    ) -> VGreedyRun:
        """Complete all runs, because only a complete run shows the next limit to try."""
        run = repeated_run(pass_costs, limits_bytes, choices)
        self._offer(run.ops())
        return run

    def _on_true_costs(self, limits_bytes: Sequence[int], choices: VGreedyChoices) -> VGreedyRun:
        """Stop a run that is no shorter than the best."""
        run = VGreedyRun(self.pass_costs, limits_bytes, choices)
        if run.run(self._below_us):
            self._offer(run.ops())
        return run

    def _go_up(self, units: Sequence[int], attempt: Callable[[Sequence[int]], VGreedyRun]) -> None:
        """Try limits within the memory limits, except those at which the run would be the same."""
        new_from = 0
        for count in _greedy_counts(self.setting):
            limits = [count * unit for unit in units]
            if exceeds_caps(limits, self.rooms) or self.value_us == self._least_us:
                return
            if count < new_from:
                continue
            try:
                run = attempt(limits)
            except NoRoomError:
                continue
            if run.short_bytes is None:
                return
            new_from = count + -(-run.short_bytes // max(units))

    def try_drawn(self) -> None:
        """The drawn orders, at their own memory and above."""
        for made, counts in _drawn_orders(self.setting):
            needed = [peak_activation_bytes(self.setting.costs, program) for program in made.order]
            units = units_bytes(self.pass_costs)
            for count in counts:
                limits = [max(count * unit, need) for unit, need in zip(units, needed, strict=True)]
                if self.value_us == self._least_us or exceeds_caps(limits, self.rooms):
                    continue
                most_us = None if self._period_us is None else self._period_us - 1
                self._offer(fitted_below(self.setting, made.order, limits, most_us))

    def _offer(self, programs: Programs | None) -> None:
        """Accept programs that keep the memory limits and are shorter, by exact simulation."""
        if programs is None:
            return
        setting, value_us = self.setting, self.setting.objective.value_us
        ordered = tuple(tuple(program) for program in programs)
        if ordered in self._seen:
            return
        self._seen.add(ordered)
        made = Schedule(setting.placement, setting.num_micro_batches, ordered, "")
        fastest = outcome_of(setting, made, unlimited(made))
        if fastest is None or not self._is_shorter(value_us(fastest)):
            return
        if self._is_useless(fastest):  # fewer buffers never take less time
            return
        found = outcome_of(setting, made, patient(setting, made))
        if found is None or found.exceeds_caps or not self._is_shorter(value_us(found)):
            return
        self.programs, self.value_us = programs, value_us(found)

    def _is_shorter(self, value_us: int) -> bool:
        return self.value_us is None or value_us < self.value_us

    @property
    def _period_us(self) -> int | None:
        """The period from which on a schedule is no better: no makespan is below its period."""
        return (
            None
            if self.value_us is None
            else -(-self.value_us // self.setting.objective.iterations)
        )

    @property
    def _below_us(self) -> int | None:
        """The period from which on a schedule is no better or of no use."""
        known = [us for us in (self._period_us, self.setting.below_us) if us is not None]
        return min(known, default=None)

    def _is_useless(self, outcome: BufferingOutcome) -> bool:
        below_us = self.setting.below_us
        return below_us is not None and outcome.makespan_us >= below_us


def _greedy_counts(setting: Setting) -> range:
    """The greedy's limits, in activations, from the least that suffices."""
    d, m = setting.num_ranks, setting.num_micro_batches
    step, runs = 1, _MOST_GREEDY_OPS // (6 * d * m)
    while 2 * d > runs * step and 4 * step <= d:
        step *= 2
    return range(2 * min(d, m), most_activations(setting) + 1, step)


def _drawn_orders(setting: Setting) -> Iterator[tuple[Drawn, range]]:
    """Each drawn order with its limits, in activations."""
    d, m = setting.num_ranks, setting.num_micro_batches
    half = drawn(d, m, v_half.building_block(d))
    smallest = drawn(d, m, v_min.building_block(d))
    step = _drawn_step(setting)
    parallelogram = zb_v.drawn(d, m)
    yield smallest, range(smallest.peak, max(half.peak, smallest.peak + 1), step)
    yield half, range(half.peak, max(2 * d, half.peak + 1), step)
    yield parallelogram, range(parallelogram.peak, 4 * d + 1, step)


def _drawn_step(setting: Setting) -> int:
    """Return the distance between two limits of the drawn orders, in activations."""
    d, ops = setting.num_ranks, 6 * setting.num_ranks * setting.num_micro_batches
    if ops <= _OPS_FOR_QUARTERS:
        return max(1, d // 4)
    return d if ops <= _OPS_FOR_WHOLES else 2 * d


FAMILY = Family(
    "zb-v-limit",
    "Qi et al. 2023, arXiv 2401.10241; 2024, arXiv 2405.15362",
    make,
    "v",
    timed=True,
    averages=True,
    searches=True,
    buffering=patient,
)
