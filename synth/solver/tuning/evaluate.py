"""Numeric constants of exact evaluation and of duration scenarios."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EvaluationTuning:
    """Exact evaluation of orders."""

    # (receive_ahead, send_behind) to try, the default first. Fewer buffers help a rank at its
    # limit, more help where a sender waits for its receiver.
    bufferings: tuple[tuple[int, int], ...] = (
        (1, 2),
        (1, 4),
        (2, 4),
        (4, 8),
        (1, 1),
        (0, 1),
        (0, 0),
    )
    # Between two looks whether a process that compiles has ended.
    compiling_look_s: float = 0.05
    # Relative gain in robustness that is worth the memory of another buffering.
    worthwhile_gain: float = 0.001
    # Effort of fusing B and W: ops verified, within these numbers of evaluations.
    fusion_ops: int = 16_000
    fewest_fusion_trials: int = 6
    most_fusion_trials: int = 24


@dataclass(frozen=True)
class ScenarioTuning:
    """Random durations, in which the times of an order are taken again."""

    # Standard deviation of the factor on each duration, and the limits of the factor.
    deviation: float = 0.05
    least_factor: float = 0.5
    most_factor: float = 2.0
    # Scenarios, the nominal one included; fewer where (stage copy, micro-batch) pairs are many.
    scenarios: int = 25
    few_scenarios: int = 5
    many_cells: int = 10_000
    # Mean number of nodes of a topological generation from which generations are handled at once,
    # and the generations after which a narrow graph is known.
    least_mean_width: float = 12.0
    generations_to_judge: int = 200


EVALUATION = EvaluationTuning()
SCENARIOS = ScenarioTuning()
