"""Bounds of every choice of recomputation, by branching over the choices of stages.

    every choice                         1.237
    ├── stage 0 keeps all                1.349   no 8 micro-batches in flight: rank 0 idles
    └── stage 0 recomputes some          1.251   its work
        ├── and no other stage does      1.348   stages 0 and 6 together
        ├── and so does stage 1          1.349
        …

A node of the tree allows some of the choices of each stage. Where every figure of a stage is the
least of its allowed choices, each schedule with one of these choices fits, and takes no longer. So
each bound of that problem, by any prover of the solver, bounds the node, and the least bound of the
open nodes bounds every choice: branch and bound (Land and Doig, Econometrica 1960). A node whose
bound reaches the value of a known schedule is closed.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from heapq import heappop, heappush
from itertools import chain
from typing import NamedTuple

from synth.plan.recompute.layer_bounds import bounds_of_every_choice
from synth.plan.recompute.layer_choice import without_layers
from synth.plan.recompute.layer_menu import figures
from synth.plan.recompute.mixed_choices import MixtureBounds
from synth.plan.recompute.stage_choices import StageChoice, instance_with, stage_choices
from synth.plan.recompute.stages import held_stages
from synth.plan.tuning import CHOICE_PROOF
from synth.schedule.files.certificate import Certificate, ProvenBound, ProverName
from synth.search.clock import Clock
from synth.solver.bounds.bound import BoundSetting, ProofState, Reference
from synth.solver.bounds.bound_policy import BoundPolicy
from synth.solver.bounds.closed_form import work_bounds
from synth.solver.instance.instance import Instance
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem

CERTIFICATE = Certificate(prover=ProverName.CHOICES)

# For each stage, the numbers of its choices that are allowed.
_Allowed = tuple[tuple[int, ...], ...]


class _Node(NamedTuple):
    """Allowed choices, their bound, and the number of proofs tried; the least bound sorts first.

    `is_final` says that more time would prove no more.
    """

    bound_us: int
    number: int
    allowed: _Allowed
    proofs: int = 0
    is_final: bool = False


class ChoiceProof:
    """A bound that holds for every choice of layers and stages to recompute on a partition."""

    def __init__(
        self,
        problem: Problem,
        options: SolveOptions,
        value_us: Callable[[], int],
        should_stop: Callable[[], bool],
    ) -> None:
        """Bound by closed forms.

        Args:
            problem: without a menu of its layers.
            options: the workers and the seed.
            value_us: asked for the value of the best known schedule, at which nodes are closed.
            should_stop: polled during each proof.
        """
        self.problem = without_layers(problem)
        self.go_on(options, value_us, should_stop)
        self._held = held_stages(self.problem)
        self._choices = stage_choices(self.problem)
        self._mixtures = MixtureBounds(self.problem, self._choices)
        self._num_nodes = 0
        self._open: list[_Node] = []
        every = tuple(tuple(range(len(choices))) for choices in self._choices)
        least = self.problem.objective.value_us(bounds_of_every_choice(self.problem))
        least = max(least, self._closed_us(self._instance(every)))
        self._alone_us = [self._bounds_alone(stage, every) for stage in range(len(every))]
        self._add(every, least)

    def go_on(
        self, options: SolveOptions, value_us: Callable[[], int], should_stop: Callable[[], bool]
    ) -> None:
        """Take other options; `value_us` may know better schedules than before, but none less."""
        self.options = replace(options, gap=0.0)
        self.value_us, self.should_stop = value_us, should_stop

    @property
    def bound_us(self) -> int:
        """The bound of every choice so far, at most the value of the best known schedule."""
        value_us = self.value_us()
        return min(value_us, self._open[0].bound_us) if self._open else value_us

    @property
    def is_decided(self) -> bool:
        """True if nothing can be better than to recompute nothing."""
        fastest = tuple((0,) for _ in self._choices)
        plain = zip(self._choices, self.problem.costs.stages, strict=True)
        return (
            len(self._open) == 1
            and self._open[0].allowed == fastest
            and all(figures(choices[0].costs) == figures(costs) for choices, costs in plain)
        )

    def prove(self, limit_s: float) -> Iterator[ProvenBound]:
        """Yield bounds of every choice until more time proves no more; a second call continues.

        Args:
            limit_s: seconds of the clock, or granted ones in a deterministic search.
        """
        clock = Clock(limit_s, is_deterministic=self.options.deterministic)
        while self._open and not self._open[0].is_final:
            if self.should_stop() or clock.left_s() <= 0:
                return
            node = heappop(self._open)
            if node.bound_us < self.value_us():
                self._raise(node, clock)
            yield ProvenBound(self.bound_us, CERTIFICATE)

    def _raise(self, node: _Node, clock: Clock) -> None:
        """Prove a node, or divide it if it is the root or was proven before."""
        is_decided = all(len(allowed) == 1 for allowed in node.allowed)
        is_root = node.number == 1
        if (node.proofs or is_root) and not is_decided:
            for allowed in self._divided(node):
                self._add(allowed, node.bound_us)
            return
        wanted_s = max(
            CHOICE_PROOF.s_per_op * self.problem.num_ops,
            CHOICE_PROOF.share_of_limit * clock.limit_s,
        )
        effort_s = min(wanted_s * 2**node.proofs, clock.left_s())
        began_s = clock.elapsed_s
        bound_us = max(node.bound_us, self._proven_us(node.allowed, effort_s))
        clock.grant(effort_s)
        proofs = node.proofs + 1
        # What ended early proves no more, and after so many proofs neither does the next one.
        is_early = not clock.is_deterministic and clock.elapsed_s - began_s < effort_s / 2
        is_final = is_decided and (is_early or proofs == CHOICE_PROOF.most_proofs)
        if bound_us < self.value_us():
            heappush(self._open, _Node(bound_us, node.number, node.allowed, proofs, is_final))

    def _proven_us(self, allowed: _Allowed, limit_s: float) -> int:
        """Return the best bound of a node by the provers of the solver within a limit."""
        clock, best_us = Clock(limit_s), 0

        def should_stop() -> bool:
            is_late = not self.options.deterministic and clock.left_s() <= 0
            return is_late or best_us >= self.value_us() or self.should_stop()

        share = CHOICE_PROOF.one_by_one_factor
        setting = BoundSetting(
            self._instance(allowed),
            self.problem.objective,
            replace(self.options, time_limit_s=share * limit_s),
            lambda: Reference(self.value_us(), None),
            ProofState(),
            should_stop,
        )
        policy = BoundPolicy(setting)
        for proven in chain(policy.one_by_one(), policy.together(limit_s)):
            best_us = max(best_us, proven.bound_us)
            if should_stop():
                break
        return best_us

    def _divided(self, node: _Node) -> Iterator[_Allowed]:
        """Yield the allowed choices of a node in parts.

        Stages that lose much by any but their best choice are fixed one after the other; else the
        stage whose memory is tightest with its fastest choice is divided in two.
        """
        allowed = node.allowed
        ranked = [
            sorted(choices, key=lambda choice: self._alone_us[stage][choice])
            for stage, choices in enumerate(allowed)
        ]
        open_stages = [stage for stage, choices in enumerate(allowed) if len(choices) > 1]
        fixed = {
            stage: ranked[stage][0]
            for stage in open_stages
            if self._alone_us[stage][ranked[stage][1]] > node.bound_us
        }
        if not fixed:
            tightest = max(open_stages, key=lambda stage: self._tightness(stage, allowed))
            fixed = {tightest: allowed[tightest][0]}
        for stage, best in fixed.items():
            others = tuple(choice for choice in allowed[stage] if choice != best)
            yield _with(allowed, stage, others)
            allowed = _with(allowed, stage, (best,))
        yield allowed

    def _tightness(self, stage: int, allowed: _Allowed) -> float:
        """Return the share of the headroom that 1F1B's micro-batches in flight need."""
        num_stages, num_ranks = len(self._choices), self.problem.num_ranks
        most = 0.0
        for rank, stages in enumerate(self._held):
            if stage in stages and self.problem.caps_bytes is not None:
                kept = sum(
                    -(-(num_stages - one) * num_ranks // num_stages)
                    * self._choices[one][allowed[one][0]].costs.saved_bytes
                    for one in stages
                )
                headroom = self.problem.caps_bytes[rank] - self.problem.static_bytes(rank)
                most = max(most, kept / max(1, headroom))
        return most

    def _add(self, allowed: _Allowed, bound_us: int) -> None:
        """Add a node without the choices that cannot be better, unless none is left."""
        value_us = self.value_us()
        possible = tuple(
            tuple(choice for choice in choices if alone_us[choice] < value_us)
            for choices, alone_us in zip(allowed, self._alone_us, strict=True)
        )
        if not all(possible):
            return
        of_stages = (
            min(alone_us[choice] for choice in choices)
            for choices, alone_us in zip(possible, self._alone_us, strict=True)
        )
        bound_us = max(bound_us, *of_stages)
        if bound_us < value_us:
            mixed = self._mixtures.bounds_of(dict(enumerate(possible)))
            bound_us = max(bound_us, self.problem.objective.value_us(mixed))
        if bound_us < value_us:
            bound_us = max(bound_us, self._closed_us(self._instance(possible)))
        if bound_us < value_us:
            self._num_nodes += 1
            heappush(self._open, _Node(bound_us, self._num_nodes, possible))

    def _instance(self, allowed: _Allowed) -> Instance:
        least = (
            reduce(StageChoice.below, (self._choices[stage][choice] for choice in choices))
            for stage, choices in enumerate(allowed)
        )
        return instance_with(self.problem, dict(enumerate(least)))

    def _closed_us(self, instance: Instance) -> int:
        return self.problem.objective.value_us(work_bounds(instance))

    def _bounds_alone(self, stage: int, every: _Allowed) -> list[int]:
        """Return the bound of each choice of a stage, whatever the others choose."""
        found = (self._mixtures.bounds_of({stage: (choice,)}, stage) for choice in every[stage])
        return [self.problem.objective.value_us(spans) for spans in found]


def _with(allowed: _Allowed, stage: int, choices: tuple[int, ...]) -> _Allowed:
    return (*allowed[:stage], choices, *allowed[stage + 1 :])
