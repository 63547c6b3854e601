"""The request that the arguments of `synth solve` make."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from synth.costs.recomputation import Recomputation
from synth.costs.recomputed_layers import recomputing
from synth.errors import SynthError
from synth.options.arguments.solve import SolveArguments
from synth.options.candidates import (
    NO_CHOICE,
    Candidates,
    check_goes_with_choice,
    is_choice,
    read_candidates,
)
from synth.options.conflicts import (
    STAY,
    check_data_parallel,
    check_runtime,
    check_unequal_ranks,
    check_versions,
)
from synth.options.deadline import Deadline
from synth.options.defaults import SolveChoices, choices, chooses_layers
from synth.options.hint import read_hint
from synth.options.memory_limit import MemoryLimit, default_limit
from synth.options.recompute import (
    read_layers,
    read_recompute,
    tell_of_layers_in_place,
)
from synth.options.request import Request
from synth.options.values import AUTO, LEAST, NONE, STEADY, written_partition
from synth.options.weights import read_sharded_pipelines, read_weight_passing, with_weights
from synth.plan.choose.candidates import Candidate, Partitioning, Ranking, SearchWatch
from synth.plan.choose.published_pairs import HintedPairs, PublishedPairs, search_beside_pairs
from synth.plan.memory_curve.least_cap_search import LeastForTime
from synth.plan.memory_curve.steady_cap import LeastWithoutBubble
from synth.plan.memory_curve.target import NOT_REPEATABLE, TimeTarget
from synth.plan.offload.offload_space import WithOffloads, with_offloads_if_asked
from synth.plan.problem_arguments import ProblemArguments
from synth.plan.recompute.layers_in_place import check_stages
from synth.plan.runtimes import Runtime
from synth.plan.search_space import (
    LimitedSpace,
    OneCandidate,
    Placements,
    SearchSpace,
    WeightPlaces,
    WithoutFlush,
)
from synth.plan.weight_passing.choice import WeightCandidate
from synth.profile import Profile
from synth.records.command_option import written
from synth.records.overwrite_guard import SCHEDULE, check_replaceable
from synth.records.safe_write import check_outputs
from synth.schedule.model import Schedule
from synth.schedule.placements import placement
from synth.solver.flush_free.flush_free_problem import FlushFreeProblem
from synth.solver.options import SolveOptions, SolverName
from synth.solver.problem import Problem
from synth.solver.result import Result
from synth.system.messages import talk
from synth.system.processor_waits import ProcessorWatch


class SolveTask(NamedTuple):
    """The search that the options of `synth solve` ask for.

    Attributes:
        request: the problem to begin with, options and limits.
        refusals: by placement that was named, why it is impossible.
        hinted_pairs: a hint with F and BW at once; None: there is none.
    """

    request: Request
    space: SearchSpace
    refusals: Mapping[str, str] = MappingProxyType({})
    hinted_pairs: HintedPairs | None = None

    @property
    def has_several(self) -> bool:
        """True if there are several candidates, possible or not."""
        return len(self.space.names) + len(self.refusals) > 1

    @property
    def pairs(self) -> PublishedPairs | None:
        """The published schedules with F and BW at once that are candidates; None: there are none.

        Such a schedule keeps its weights on their ranks, and is of one pipeline.
        """
        request, space = self.request, self.space
        is_asked = request.profile.has_pairs and request.allowed.runs_pairs
        if not is_asked or request.num_pipelines > 1:
            return None
        if not isinstance(space, OneCandidate | Placements | WithOffloads):
            return None
        return PublishedPairs(
            space.all_candidates, request.as_run, request.partitioning, self.hinted_pairs
        )

    def search(self, watch: SearchWatch) -> Ranking:
        """Find the best schedule; see `SearchSpace.search`."""
        options, pairs = self.request.options, self.pairs
        if pairs is None:
            return self.space.search(options, watch)
        return search_beside_pairs(pairs, self.space.search, options, watch)

    def timed(self, result: Result, machine: ProcessorWatch) -> Result:
        """Return the result with the time since the request, also if parts of it measured theirs.

        Args:
            machine: counted the processor time of the search.
        """
        request = self.request
        share = None if request.options.deterministic else machine.share
        return replace(result, wall_s=request.deadline.elapsed_s, waiting_share=share)


def read_solve(given: SolveArguments) -> SolveTask:
    """Read and check all options.

    Raises:
        SynthError: an option is wrong, or options do not go together.
    """
    check_versions(given)
    check_runtime(given)
    placement_name, given = given.placement, with_weights(given)
    deadline = Deadline.of(given.time_limit, is_clock=not given.deterministic)
    check_outputs(given.output, inputs=[given.pipeline.profile_file])
    check_replaceable(given.output, SCHEDULE, "-o", force=None)
    target = _target(given)
    check_data_parallel(given)
    profile = given.hardware.of_ranks(given.pipeline.profile, given.pipeline.ranks)
    if profile.rank_speeds is not None:
        check_unequal_ranks(given)
    layers = read_layers(given.recompute or "none", profile)
    limit = given.memory.limits(given.pipeline.ranks, profile)
    chosen = choices(given, profile, "none" if layers else given.recompute)
    asked = _problem_arguments(given, recomputing(profile, layers), chosen, layers, limit)
    problems = _problems(given, placement_name, profile, chosen, asked, deadline)
    problem = problems.first
    if problem.partition is None:
        raise ValueError("a problem of the command line has a partition")
    deadline = deadline.without_answer(problem.num_ops)
    runs_pairs = profile.has_pairs and given.freedom.allowed.runs_pairs
    hint = read_hint(given.hint, problem, profile, runs_pairs=runs_pairs)
    request = Request(
        profile,
        problem.partition,
        problem=problem,
        options=_options(given, hint.order, deadline),
        limit=limit,
        arguments=_recorded(given, profile, chosen, layers),
        output=given.output,
        recompute=read_recompute(chosen.recompute, problem.costs.num_stages),
        deadline=deadline,
        costs_from=asked.profile_of_one,
        num_pipelines=1 if _is_sharded(given) else given.data_parallel,
        allowed=given.freedom.allowed,
        unsearched=problems.candidates.unsearched,
    )
    if given.target == STEADY:
        _check_keeps_saved(request)
    refusals = problems.candidates.refusals
    return SolveTask(request, _space(given, problems, request, target), refusals, hint.pairs)


def _space(
    given: SolveArguments, problems: "_Problems", request: Request, target: TimeTarget | None
) -> SearchSpace:
    """Return what the search chooses from."""
    if given.versions is not None:
        flush_free = FlushFreeProblem.parse(given.versions, request.problem)
        return WithoutFlush(request.arguments["placement"], flush_free)
    space = _limited_space(given, problems, request)
    if target is not None:
        return LeastForTime(space, target)
    if given.target == STEADY:
        assert isinstance(space, OneCandidate)
        return LeastWithoutBubble(space)
    finer = problems.candidates.finer
    return with_offloads_if_asked(space, request.allowed, finer)


def _limited_space(given: SolveArguments, problems: "_Problems", request: Request) -> LimitedSpace:
    candidates = problems.candidates.searched
    profile, partitioning = request.as_run, request.partitioning
    one = Candidate(request.arguments["placement"], request.problem, request.recompute)
    if problems.moving and given.target is not None:
        # With a target the pipelines beside them have one placement in one partition.
        return WeightPlaces(problems.moving, (one,) if given.weights == AUTO else (), profile)
    if given.weights == AUTO and not _is_sharded(given):
        return WeightPlaces(problems.moving, candidates, profile, partitioning, has_families=True)
    if problems.moving:
        return WeightPlaces(problems.moving, candidates, profile, partitioning)
    if candidates:
        return Placements(candidates, profile, partitioning)
    return OneCandidate(one, profile if partitioning == Partitioning.EVEN else None)


def _target(given: SolveArguments) -> TimeTarget | None:
    """Return the time to meet with the least memory; None: there is none."""
    target, is_least = given.target, given.memory.mem_limit == LEAST
    if is_least != (target is not None):
        names = "§target", f"§mem_limit {LEAST}"
        there, missing = reversed(names) if is_least else names
        raise SynthError(
            f"{there} is given without {missing}; together they minimize memory subject to a "
            f"time, such as 105% of the lower bound"
        )
    if target is None or isinstance(target, str):
        return None
    if given.deterministic:
        raise SynthError(NOT_REPEATABLE)
    return target


def _problem_arguments(
    given: SolveArguments,
    profile: Profile,
    chosen: SolveChoices,
    layers: Recomputation,
    limit: MemoryLimit,
) -> ProblemArguments:
    return ProblemArguments(
        profile=profile,
        num_micro_batches=given.pipeline.micro_batches,
        partition=chosen.partition,
        objective=given.objective,
        caps_bytes=limit.caps_bytes,
        recomputed_layers=layers,
        # The least limit is searched with whole stages, as its steps share their results.
        chooses_layers=given.target is None
        and profile.rank_speeds is None
        and chooses_layers(chosen, given.freedom.allowed, len(profile.layers), given.time_limit),
        num_pipelines=given.data_parallel,
        allowed=given.freedom.allowed,
        orders_ranks=given.hardware.rank_order == AUTO,
    )


def _is_sharded(given: SolveArguments) -> bool:
    """True if state may be sharded over data-parallel pipelines."""
    return given.data_parallel > 1 and given.weights != STAY


class _Problems(NamedTuple):
    """The problem to begin with, the placements to choose from, and problems with moving weights.

    Without searched candidates there is no choice of placements.
    """

    first: Problem
    candidates: Candidates = NO_CHOICE
    moving: tuple[WeightCandidate, ...] = ()


def _problems(
    given: SolveArguments,
    placement: str | None,
    profile: Profile,
    chosen: SolveChoices,
    asked: ProblemArguments,
    deadline: Deadline,
) -> _Problems:
    ranks = given.pipeline.ranks
    if _is_sharded(given):
        sharded = read_sharded_pipelines(placement, ranks, asked, profile)
        return _Problems(sharded[0].problem, moving=sharded)
    passing = read_weight_passing(given.weights, placement, ranks, asked)
    if passing and given.weights != AUTO:
        return _Problems(passing[0].problem, moving=passing)
    candidates, problem = _problem(given, chosen, asked, deadline)
    return _Problems(problem, candidates, passing)


def _problem(
    given: SolveArguments, chosen: SolveChoices, asked: ProblemArguments, deadline: Deadline
) -> tuple[Candidates, Problem]:
    """Return the candidates to choose from, and the problem to begin with."""
    tell_of_layers_in_place(chosen.recompute, asked.profile)
    ranks = given.pipeline.ranks
    is_for_one = given.is_for_one or given.hint is not None
    if is_choice(chosen, is_for_one=is_for_one) or not asked.allowed.orders_freely:
        check_goes_with_choice(chosen, given.target, given.hint)
        candidates = read_candidates(asked, chosen, ranks, deadline)
        return candidates, candidates.searched[0].problem
    problem = asked.on(placement(chosen.placement, ranks), deadline.for_partitions())
    choice = read_recompute(chosen.recompute, problem.costs.num_stages)
    check_stages(problem, choice, asked.profile)
    return NO_CHOICE, problem


def _options(given: SolveArguments, hint: Schedule | None, deadline: Deadline) -> SolveOptions:
    return SolveOptions(
        time_limit_s=deadline.left_of(given.time_limit),
        gap=given.search.gap,
        workers=given.workers,
        seed=given.search.seed,
        deterministic=given.deterministic,
        hint=hint,
        solver=SolverName(given.solver),
        verbose=talk if given.verbose else None,
    )


def _recorded(
    given: SolveArguments, profile: Profile, chosen: SolveChoices, layers: Recomputation
) -> dict[str, str]:
    """Return the options that a plan file records, with their defaults filled in."""
    link, memory, runtime = given.hardware.link, given.memory, given.freedom.runtime
    recorded = {
        "mem_limit": written(memory, "mem_limit") or str(default_limit(profile)),
        "placement": chosen.placement,
        "partition": written_partition(chosen.partition),
        "recompute": given.recompute if given.recompute and layers else chosen.recompute,
        "link": "; ".join(link) if link else "as in the profile",
        "rank_speed": written(given.hardware, "rank_speed"),
        "rank_order": None if given.hardware.rank_order == "given" else AUTO,
        "time_limit": written(given, "time_limit"),
        "gap": written(given.search, "gap"),
        "solver": given.solver,
        "deterministic": str(given.deterministic).lower(),
        "seed": str(given.search.seed),
        "workers": written(given, "workers") or "all cores",
        "hint": written(given, "hint") or NONE,
        "target": written(given, "target"),
        "mem_reserve": written(memory, "mem_reserve"),
        "weights": None if given.weights == STAY else given.weights,
        "data_parallel": None if given.data_parallel == 1 else str(given.data_parallel),
        "versions": given.versions,
        "for": None if runtime == Runtime.SYNTH.value else runtime,
        "offload": "true" if given.freedom.offload else None,
    }
    return {name: text for name, text in recorded.items() if text is not None}


def _check_keeps_saved(request: Request) -> None:
    if request.recompute != ():
        raise SynthError(
            f"§recompute {request.arguments['recompute']} and §target {STEADY} do not go "
            f"together: a steady state is searched for without recomputation; give a time as "
            f"target, or leave §recompute out"
        )
