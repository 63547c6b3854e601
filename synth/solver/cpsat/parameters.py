"""Parameters of CP-SAT: those of all models, and those of some."""

from __future__ import annotations

from synth.solver.cpsat.or_tools import cp_model
from synth.solver.options import SolveOptions
from synth.solver.tuning import CPSAT

# CP-SAT keeps its seed in 32 bits, signed.
_SEEDS = 1 << 31


def quiet(seed: int, workers: int, *, repeatable: bool) -> cp_model.SatParameters:
    """Make the parameters of all models.

    Args:
        repeatable: the same result whatever the threads do.
    """
    parameters = cp_model.SatParameters()
    parameters.random_seed = seed % _SEEDS
    parameters.num_workers = workers
    # Repeatable means interleaved; then OR-Tools 9.15 aborts on infeasible models without probing.
    parameters.interleave_search = repeatable and workers > 1
    parameters.cp_model_probing_level = 1 if parameters.interleave_search else 0
    parameters.expand_reservoir_constraints = False
    # If micro-batches are in order, an op precedes or follows nearly every other one of its rank.
    # Propagating all these pairs at every step takes two thirds of the time, and proves next to
    # nothing. Without it, the older propagation of linear constraints is the quicker one.
    parameters.use_precedences_in_disjunctive_constraint = False
    parameters.new_linear_propagation = False
    parameters.catch_sigint_signal = False
    parameters.log_to_stdout = False
    return parameters


def search_from_below(parameters: cp_model.SatParameters) -> None:
    """Ask for a solution at the bound and raise it, for models whose value alone is needed."""
    parameters.use_objective_lb_search = True
    parameters.linearization_level = 0


def mind_orders(parameters: cp_model.SatParameters) -> None:
    """Let a single worker use precedences, and no linear relaxations.

    Linear relaxations prove little where ops of a rank exclude each other, and take most of the
    time.
    """
    parameters.use_dynamic_precedence_in_disjunctive = True
    parameters.linearization_level = 0


def of_options(options: SolveOptions, limit_s: float) -> cp_model.SatParameters:
    """Make the parameters of an exact model; the limit is in clock or deterministic seconds."""
    # Several workers are repeatable where they take turns; then OR-Tools 9.15 fails a check where a
    # short limit ends the search (`solution->size() == postsolve_mapping.size()`), and aborts.
    workers = 1 if options.deterministic else options.num_workers
    parameters = quiet(options.seed, workers, repeatable=options.deterministic)
    parameters.use_dynamic_precedence_in_disjunctive = True  # proofs: up to four times as fast
    if workers == 1:
        mind_orders(parameters)
    parameters.relative_gap_limit = options.gap
    parameters.log_search_progress = options.verbose is not None
    if options.deterministic:
        parameters.max_deterministic_time = max(limit_s, CPSAT.shortest_limit_s)
    else:
        parameters.max_time_in_seconds = max(limit_s, CPSAT.shortest_limit_s)
    return parameters


def without_aborts(parameters: cp_model.SatParameters) -> cp_model.SatParameters:
    """Return the parameters without those known to make OR-Tools 9.15 abort, and with another seed.

    With dynamic precedences it fails checks on some models (`CurrentDecisionLevel() != 0`, `level
    == integer_search_levels_.size()`, `!assumptions_.empty()`). Precedences of the whole search
    replace them: on these models, which are small, the proof then comes at least as soon.
    """
    others = cp_model.SatParameters()
    others.copy_from(parameters)
    others.use_dynamic_precedence_in_disjunctive = False
    others.use_precedences_in_disjunctive_constraint = True
    others.random_seed = (parameters.random_seed + 1) % _SEEDS
    return others
