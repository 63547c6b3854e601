"""Constants of the search over sharded data-parallel pipelines."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ShardedPipelinesTuning:
    """Local search over the places of all-gathers and reduce-scatters in given orders."""

    # Placements of one pipeline that are tried unless one is given.
    placements: tuple[str, ...] = ("linear", "looped:2", "v")
    # Share of the time for the orders of one pipeline.
    orders_share: float = 0.4
    # Orders of each search that are kept, the best ones, besides the published ones.
    orders_kept: int = 3
    # Ops between an UNSHARD and its first reader, and stages that are whole on a rank at once
    # (None: as many as fit), in first places.
    aheads: tuple[int, ...] = (1, 3, 0, 8)
    most_open: tuple[int | None, ...] = (None, 1, 2)
    # Times that first places are made again with less room, if a rank exceeds its limit.
    corrections: int = 4
    # Places that are kept to begin from, and the moves of one run.
    pool_size: int = 6
    moves_per_run: int = 100
    # Moves of which all are impossible, after which a run ends.
    draws_per_move: int = 20
    # Most ops by which a move shifts a collective, and the shares of moves that shift one and that
    # leave one out; the others add one.
    farthest: int = 8
    shifted_share: float = 0.6
    dropped_share: float = 0.2
    # Effort of an evaluation: in all, and for each op of all ranks.
    evaluation_s: float = 1.5e-3
    evaluation_s_per_op: float = 1e-5
    # A search that has no schedule yet goes on without time for this many evaluations, or for this
    # effort if they take more.
    least_evaluations: int = 60
    most_beyond_s: float = 2.0


SHARDED_PIPELINES = ShardedPipelinesTuning()
