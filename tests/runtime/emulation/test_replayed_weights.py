"""Emulated devices: weight passing and versions of weights, in order, time and memory."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from synth.costs.costs import Costs, uniform_costs
from synth.errors import SynthError
from synth.families import family_placement, generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.lowering.edges import Edges
from synth.schedule.lowering.lower import Lowered, lower
from synth.schedule.measured.rank_log import join_logs
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.sharded_pipelines import sharded_pipelines
from synth.schedule.simulate import simulate
from synth.schedule.verify import verify
from synth.schedule.weight_flow import Route
from tests.runtime.gloo_pool import GlooPool

RANKS = 4
# A stage's weights take 6 ms from rank to rank, its gradient 4.4 ms.
LINK = Link(latency_us=400.0, bandwidth_bytes_per_s=5e6)
HOST = Link(latency_us=200.0, bandwidth_bytes_per_s=10e6)


@pytest.fixture(scope="module")
def four() -> Iterator[Any]:
    """Processes for four ranks."""
    made = GlooPool(RANKS)
    yield made
    made.close()


def costs_of(num_stages: int) -> Costs:
    costs = uniform_costs(
        num_stages,
        forward_us=2000,
        backward_input_us=2500,
        backward_weight_us=1500,
        saved_bytes=50_000,
        saved_w_bytes=30_000,
        output_bytes=4_000,
        gradient_bytes=20_000,
        parameter_bytes=28_000,
        static_bytes=28_000 + 20_000 + 60_000,
        links=Links(default=LINK, host=HOST),
    )
    stages = (s.replace(duration_us={**s.duration_us, OpKind.STEP: 800}) for s in costs.stages)
    return costs.replace(stages=tuple(stages))


def case(name: str, micro_batches: int = 2 * RANKS) -> tuple[Schedule, Costs]:
    costs = costs_of(family_placement(name, RANKS).num_stages)
    return generate(name, RANKS, micro_batches, costs=costs), costs


def star() -> tuple[Schedule, Costs]:
    """WeiPipe whose weights come from their home each time, several at once."""
    schedule, costs = case("weipipe")
    assert schedule.weights is not None
    return replace(schedule, weights=replace(schedule.weights, weights=Route.STAR)), costs


def emulate(rank: int, size: int, schedule: Schedule, costs: Costs) -> Any:
    """Run a schedule; return the rank's result and its held values."""
    from synth.run_options.emulation_options import EmulationOptions
    from synth.runtime.emulation.emulated_rank import RankEmulation
    from synth.runtime.world import World

    world = World(rank, size, torch.device("cpu"), "gloo", "here", 2)
    emulation = RankEmulation(lower(schedule, costs), EmulationOptions(steps=3), world)
    return emulation.run(), emulation.held_values


def earliest_end_us(lowered: Lowered) -> list[int]:
    """The earliest end of each op, where no sender knows when its receive was posted.

    A sender then waits for a transfer of its own making: it starts once the data is made and the
    link is free by the sender's account. The real transfer waits for its receive, too.
    """
    first_transfer, num_nodes = lowered.first_node[-1], len(lowered.durations_us)
    num_transfers = len(lowered.transfer_table)
    transfers = range(first_transfer, first_transfer + num_transfers)
    shadow = num_nodes - first_transfer  # from a transfer to what its sender sees of it
    rank_of = [rank for rank, ops in enumerate(lowered.ops) for _ in ops]
    link = {node: lowered.transfers[node - first_transfer][1:3] for node in transfers}
    pairs = []
    for before, after in zip(*(ends.tolist() for ends in lowered.edges), strict=True):
        if before in link and after < first_transfer and rank_of[after] == link[before][0]:
            pairs.append((before + shadow, after))
            continue
        pairs.append((before, after))
        if before in link and after in link and link[before] == link[after]:
            pairs.append((before + shadow, after + shadow))
        elif after in link and (before in link or rank_of[before] == link[after][0]):
            pairs.append((before, after + shadow))
    taken = lowered.durations[first_transfer : first_transfer + num_transfers]
    durations = np.concatenate([lowered.durations, taken])
    return simulate(replace(lowered, durations=durations, edges=Edges.of(pairs))).end_us


def assert_replayed(pool: Any, schedule: Schedule, costs: Costs) -> None:
    """In order, no op before its time, in the memory planned, and every transfer was seen.

    With weight passing the executor makes all updates of a rank at its last STEP. On a ring a rank
    waits for sends before the next op, and an emulated sender does not know when its receive was
    posted.
    """
    found = pool.run(emulate, schedule.num_ranks, schedule, costs)
    lowered, _ = verify(schedule, costs)
    due = lower(schedule, costs, synchronous_step=True)
    is_ring = schedule.weights is not None and schedule.weights.weights == Route.CHAIN
    due_us = iter(earliest_end_us(due) if is_ring else simulate(due).end_us)
    execution = join_logs([result.traced[-1].log for result, _ in found])

    assert [held for _, held in found] == [0] * schedule.num_ranks
    assert [[span.op for span in rank] for rank in execution.ops] == [list(r) for r in lowered.ops]
    assert {span.communication for span in execution.communications} == {
        *lowered.transfers,
        *lowered.collectives,
    }
    for mine in execution.ops:
        for span in mine:
            end_us = next(due_us)
            is_early = span.op.kind == OpKind.STEP and schedule.weights and span is not mine[-1]
            assert is_early or span.end_us >= end_us - 1, span.op
    assert tuple(result.peak_bytes for result, _ in found) == peak_bytes(lowered)


@pytest.mark.parametrize(
    "name",
    [
        *("weipipe", "weipipe:wzb2", "tawpipe:nodes=2", "mobius"),
        *("zero3:1", "zero2:1", "zero1:1"),
    ],
)
def test_weights_are_passed_as_on_real_stages(four: Any, name: str) -> None:
    assert_replayed(four, *case(name))


def test_weights_may_leave_their_home_for_several_ranks_at_once(four: Any) -> None:
    assert_replayed(four, *star())


def test_pipelines_side_by_side_share_their_optimizer_state(four: Any) -> None:
    assert_replayed(four, sharded_pipelines(generate("1f1b", 2, 4), 2), costs_of(2))


@pytest.mark.parametrize("name", ["pipedream", "pipedream:vertical", "2bw", "pipedream:2-1-1"])
def test_updates_between_ops_are_made_and_versions_take_their_memory(four: Any, name: str) -> None:
    assert_replayed(four, *case(name))


@pytest.mark.parametrize("name", ["weipipe", "pipedream"])
def test_late_validation_is_refused(name: str) -> None:
    from synth.run_options.emulation_options import EmulationOptions
    from synth.runtime.emulation.emulated_rank import check_replayable

    lowered = lower(*case(name))
    with pytest.raises(SynthError, match="leave out --post-validation"):
        check_replayable(lowered, EmulationOptions(post_validation=True))


def test_a_host_that_ranks_share_is_refused() -> None:
    from synth.run_options.emulation_options import EmulationOptions
    from synth.runtime.emulation.emulated_rank import check_replayable

    with pytest.raises(SynthError, match="emulate one whose stages stay with their homes"):
        check_replayable(lower(*case("roundpipe")), EmulationOptions())


def test_activations_that_move_beside_weights_are_refused() -> None:
    from synth.run_options.emulation_options import EmulationOptions
    from synth.runtime.emulation.emulated_rank import check_replayable

    schedule, costs = case("mobius")
    ops = schedule.programs[0]
    moving = tuple(
        each
        for op in ops
        for each in (
            (op, Op(OpKind.OFFLOAD, 0, 0), Op(OpKind.RELOAD, 0, 0))
            if op == Op(OpKind.F, 0, 0)
            else (op,)
        )
    )
    moved = replace(schedule, programs=(moving, *schedule.programs[1:]))
    with pytest.raises(SynthError, match="both weights and saved activations move"):
        check_replayable(lower(moved, costs), EmulationOptions())
