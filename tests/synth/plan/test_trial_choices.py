"""The choices of recomputation that get a trial, by the time there is."""

from dataclasses import replace

from synth.costs.recomputation import NOT_RECOMPUTED, Recomputation
from synth.families import generate
from synth.plan.recompute.layer_choice import with_layers
from synth.plan.recompute.trial_choices import choices_tried, most_trials
from synth.plan.tuning import RECOMPUTE_TRIALS
from synth.schedule.model import Schedule
from synth.solver.infeasibility import needed_bytes
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from tests.synth.plan.test_choice_moves import pipeline


def tried(
    problem: Problem,
    most: int,
    hint: Schedule | None = None,
    layers: Recomputation = NOT_RECOMPUTED,
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The layers and stages of each choice tried beside one of layer 0."""
    options = SolveOptions(hint=hint, hint_layers=layers)
    layered = [with_layers(problem, (0,))]
    found = choices_tried(problem, options, layered, lambda stages: (problem,), most)
    return [(tuple(one.recomputed_layers), stages) for one, stages in found]


def test_the_choice_of_the_hint_comes_first_and_only_once() -> None:
    problem = pipeline(0, (2, 1, 2), 10**9)
    hint = generate("1f1b", 3, 4)
    one = Recomputation((1,))
    assert tried(problem, 3, hint, one)[:3] == [((1,), ()), ((), ()), ((0,), ())]
    few = [((), ()), ((0,), ()), ((), (0, 1, 2)), ((), (0,)), ((), (0, 1))]
    assert tried(problem, 1, hint) == few  # the least and the most stages come first
    every = [((), ()), ((0,), ()), ((), (0,)), ((), (0, 1)), ((), (0, 1, 2))]
    assert tried(problem, 10, hint) == tried(problem, 10) == every


def test_what_cannot_fit_gets_no_trial() -> None:
    problem = pipeline(0, (2, 1, 2))
    layers = with_layers(problem, (0,))
    cap = max(needed_bytes(layers))
    assert max(needed_bytes(problem)) > cap
    found = tried(replace(problem, caps_bytes=(cap,) * 3), 10)
    assert ((), ()) not in found and ((0,), ()) in found


def test_there_are_as_many_trials_as_the_time_is_enough_for() -> None:
    problem = pipeline(0, (2, 1, 2))
    each_s = RECOMPUTE_TRIALS.s_per_op * problem.num_ops
    assert [most_trials(problem, times * each_s) for times in (0, 0.9, 2.5)] == [1, 1, 2]
