"""Numeric constants of the choice of layouts; units are in the names, as in `synth.plan.tuning`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LegalTuning:
    """Sizes that are enumerated."""

    # Ranks that share the tokens of a sequence, and sequences in a micro-batch, at most.
    most_context: int = 16
    most_micro_batch: int = 16
    # Stages per rank, where there are as many layers.
    rounds: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)


@dataclass(frozen=True)
class LayoutSearchTuning:
    """Effort of judging and solving."""

    # Shares of the time limit until which layouts get a quick bound, and a closer one.
    list_share: float = 0.4
    bound_share: float = 0.45
    # Groups and ranks with a quick bound of which the best ones are judged before all others.
    first_listed: int = 400
    # Layouts with a closer bound of which the first ones are judged before others get theirs, and
    # how many are.
    first_bounded: int = 100
    first_judged: int = 4
    # So many groups and ranks are bounded at once, between looks at the clock: of those that look
    # best, and of those with the least quick bounds.
    bounded_at_once: int = 10
    # Shares of the time limit until which layouts are judged that may be the best, then those of
    # other kinds, and until which the best are solved.
    judge_share: float = 0.6
    kinds_share: float = 0.65
    solve_share: float = 0.85
    # Layouts that the solver gets at most, and the least seconds for one.
    solved: int = 3
    least_solve_s: float = 1.0
    # Seconds for the first partitions of a placement, for those of a published schedule on it, and
    # for its recomputed layers.
    cuts_s: float = 0.2
    family_s: float = 0.6
    # Multiple of the best step up to which a schedule that was judged by few micro-batches is made
    # with all of them, and layouts of other kinds that are judged.
    near_factor: float = 1.03
    kinds: int = 8
    # Layouts of which the order under other factors is looked at, and how many draws of factors.
    shortlist: int = 8
    draws: int = 32


@dataclass(frozen=True)
class FamilyTuning:
    """Published schedules that a layout is judged by, the quickest first, by stages per rank."""

    one: tuple[str, ...] = ("1f1b", "zb-h1", "zb-1p", "zb-2p")
    two: tuple[str, ...] = ("interleaved:2", "zb-v", "v-half", "v-min")
    more: tuple[str, ...] = ("interleaved:{}",)
    # Ops beyond which no schedule is made that reads the times of the stages: 0.1 ms for each.
    most_timed_ops: int = 15_000

    def names(self, ranks: int, rounds: int) -> tuple[str, ...]:
        """The names of the schedules for a number of ranks and of stages per rank."""
        if ranks == 1:
            return self.one[:1]
        chosen = {1: self.one, 2: self.two}.get(rounds, self.more)
        return tuple(name.format(rounds) for name in chosen)


LEGAL = LegalTuning()
LAYOUT_SEARCH = LayoutSearchTuning()
FAMILIES = FamilyTuning()
