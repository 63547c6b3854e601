"""Bounded out-of-order replay on real stages: gradients, order, failures and refusals."""

import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.costs.costs import Costs, uniform_costs
from synth.errors import RunFailure, SynthError
from synth.families import generate
from synth.profile.links import Link, Links
from synth.runtime.execution.program.out_of_order import OutOfOrder
from synth.schedule.look_ahead import LookAhead
from synth.schedule.lowering.lower import Instruction, Lowered, Transfer, lower
from synth.schedule.ops import Value
from synth.schedule.rank_memory import peak_bytes
from tests.runtime.gradients import gradient_of
from tests.runtime.rank_threads import RankThreads, group_here
from tests.runtime.replaying import build_batch, build_stages, plain_autograd

MICRO_BATCHES = 6


def costs_of(num_stages: int) -> Costs:
    return uniform_costs(
        num_stages,
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        saved_bytes=1000,
        saved_w_bytes=600,
        output_bytes=72,
        links=Links(host=Link()),
    )


def lowered_family(name: str, ranks: int) -> Lowered:
    schedule = generate(name, ranks, MICRO_BATCHES)
    return lower(schedule, costs_of(schedule.placement.num_stages))


class Late(nn.Module):
    """A stage that is late at random, forwards and backwards."""

    def __init__(self, stage: nn.Module, seed: int) -> None:
        super().__init__()
        self.stage = stage
        self._draw = random.Random(seed)

    def forward(self, x_BD: Tensor, *targets: Tensor) -> Tensor:
        self._be_late()
        if x_BD.requires_grad:
            x_BD.register_hook(lambda gradient: self._be_late())
        found: Tensor = self.stage(x_BD, *targets)
        return found

    def _be_late(self) -> None:
        time.sleep(self._draw.choice((0.0, 0.0, 0.0, 0.02)))


def replay(rank: int, size: int, family: str, most_ops: int) -> tuple[list[bool], int, int]:
    """Return which stages have autograd's gradients, and the numbers of early and held values."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    lowered = lowered_family(family, size)
    stages = build_stages(lowered.schedule.placement.num_stages)
    mine = {stage for stage, _ in lowered.schedule.placement.held[rank]}
    pipeline = Pipeline(
        lowered,
        {stage: [Late(stages[stage], 7 * rank + stage)] for stage in mine},
        group=group_here(),
        look_ahead=most_ops,
        caps_bytes=[2 * max(peak_bytes(lowered))] * size,
    )
    num_early = 0
    for _ in range(3):
        for number in mine:
            stages[number].zero_grad()
        pipeline.step(Batch(*build_batch(MICRO_BATCHES)))
        num_early += pipeline.num_early_ops
    wanted = plain_autograd(len(stages), MICRO_BATCHES)
    right = [
        all(map(torch.equal, map(gradient_of, stages[number].parameters()), wanted[number]))
        for number in mine
    ]
    return right, num_early, pipeline.held_values


def accumulate(rank: int, size: int, family: str) -> bool:
    """Return whether two steps, only the second of which updates, give twice the gradients."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    lowered = lowered_family(family, size)
    stages = build_stages(lowered.schedule.placement.num_stages)
    mine = {stage for stage, _ in lowered.schedule.placement.held[rank]}
    pipeline = Pipeline(
        lowered,
        {stage: [Late(stages[stage], 7 * rank + stage)] for stage in mine},
        group=group_here(),
        look_ahead=4,
        caps_bytes=[2 * max(peak_bytes(lowered))] * size,
    )
    for update in (False, True):
        pipeline.step(Batch(*build_batch(MICRO_BATCHES)), update=update)
    wanted = plain_autograd(len(stages), MICRO_BATCHES)
    return all(
        torch.allclose(gradient_of(parameter), 2 * gradient, rtol=1e-5, atol=1e-6)
        for number in mine
        for parameter, gradient in zip(stages[number].parameters(), wanted[number], strict=True)
    )


@pytest.mark.parametrize("family", ["chimera", "pipeoffload:2", "v-half"])
def test_copies_offloading_and_accumulation_work_out_of_order(family: str) -> None:
    assert RankThreads().run(accumulate, 2, family) == [True, True]


@pytest.mark.parametrize("family", ["1f1b", "zb-h1", "zb-v"])
def test_gradients_are_those_of_the_plans_order_bit_for_bit(ranks: Any, family: str) -> None:
    found = ranks.run(replay, 2, family, 3)
    assert all(all(right) for right, _, _ in found)
    assert sum(num_early for _, num_early, _ in found) > 0
    assert [held for _, _, held in found] == [0, 0]


def fail_on_one_rank(rank: int, size: int) -> str:
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    class Fails(nn.Module):
        def forward(self, x_BD: Tensor, targets: Tensor) -> Tensor:
            raise ValueError("broken here")

    lowered = lowered_family("1f1b", size)
    module = [Fails()] if rank else [build_stages(2)[0]]
    pipeline = Pipeline(lowered, module, group=group_here(), look_ahead=2, timeout_s=60)
    try:
        pipeline.step(Batch(*build_batch(MICRO_BATCHES)))
    except (RunFailure, SynthError, RuntimeError, ValueError) as error:
        return str(error)
    return "nothing"


def test_a_rank_that_looks_ahead_is_told_of_a_failure() -> None:
    for found in RankThreads().run(fail_on_one_rank, 2):
        assert "broken here" in found


def without_costs(rank: int, size: int) -> str:
    from synth.runtime.pipeline import Pipeline

    with pytest.raises(SynthError) as refused:
        Pipeline(generate("1f1b", size, 2), [build_stages(1)[0]], group=group_here(), look_ahead=1)
    return str(refused.value)


def test_a_bare_schedule_has_no_memory_to_keep() -> None:
    assert "a bare schedule has no costs" in RankThreads().run(without_costs, 1)[0]


class Recorder:
    """A runner that records what it is told to do."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.places: list[int] = []

    def note_place(self, place: int) -> None:
        assert set(self.ran) >= set(range(place))
        self.places.append(place)

    def run_one(self, index: int) -> None:
        self.ran.append(index)

    def free(self, values: Iterable[Value]) -> None:
        pass


class Arriving:
    """Receives that arrive when they are waited for, the last one first."""

    def __init__(self) -> None:
        self.arrived: set[Transfer] = set()

    def has_arrived(self, transfer: Transfer) -> bool:
        return transfer in self.arrived

    def wait_any(self, transfers: Sequence[Transfer]) -> None:
        self.arrived.add(transfers[-1])


def test_the_place_of_a_rank_is_that_of_its_next_op_while_it_waits() -> None:
    """A hang detector reads it: everything before has run, and nothing is claimed beyond."""
    lowered = lowered_family("zb-h1", 2)
    chooser = LookAhead(lowered, 0, 4, 10**9)
    replayed = OutOfOrder(chooser, lowered.programs[0], Arriving())
    recorder = Recorder()
    replayed.begin(())
    replayed.run(len(lowered.programs[0]), recorder)
    assert sorted(recorder.ran) == list(range(len(lowered.programs[0])))
    assert recorder.ran != sorted(recorder.ran)
    assert recorder.places == sorted(recorder.places)


class ArrivingBetweenLooks(Arriving):
    """Receives that at random arrive right after a look that did not find them."""

    def __init__(self, chooser: LookAhead, program: Sequence[Instruction], seed: int) -> None:
        super().__init__()
        self._chooser, self._program = chooser, program
        self._draw = random.Random(seed)
        self.num_between = 0

    def has_arrived(self, transfer: Transfer) -> bool:
        found = super().has_arrived(transfer)
        if self._draw.random() < 0.3:
            self.arrived.add(transfer)
        return found

    def wait_any(self, transfers: Sequence[Transfer]) -> None:
        if not self.arrived.isdisjoint(transfers):
            self.num_between += 1
            return
        could_run = self._chooser.choose(lambda place: self._program[place].moved in self.arrived)
        # What it waits for may depend on this very instruction.
        assert could_run is None, f"waits although {self._program[could_run]} could run"
        super().wait_any(transfers)


def test_a_rank_does_not_miss_an_arrival_between_its_choice_and_its_wait() -> None:
    """It waited for the others only, which never came: all ranks hung."""
    lowered = lowered_family("zb-h1", 4)
    num_between = 0
    for seed in range(20):
        rank = 1 + seed % 2
        program = lowered.programs[rank]
        chooser = LookAhead(lowered, rank, 4, 10**9)
        arriving = ArrivingBetweenLooks(chooser, program, seed)
        replayed = OutOfOrder(chooser, program, arriving)
        replayed.begin(())
        replayed.run(len(program), Recorder())
        assert chooser.head == len(program)
        num_between += arriving.num_between
    assert num_between > 0
