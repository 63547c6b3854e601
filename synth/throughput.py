"""Throughput: the tokens, or samples of other inputs, that are trained on per second."""

from synth.objective import HasSpans, Objective
from synth.workload import Workload


def tokens_per_s(
    objective: Objective, spans: HasSpans, num_micro_batches: int, workload: Workload
) -> float | None:
    """Return the tokens of an iteration over its time; None: it takes no time.

    Args:
        objective: the time that an iteration takes.
        spans: of the schedule.
        num_micro_batches: of an iteration.
        workload: has the tokens of a micro-batch.
    """
    iterations = objective.iterations_per_s(spans)
    return None if iterations is None else iterations * num_micro_batches * workload.tokens
