"""Weights with versions: the versions read and held, by formula and by replaying the programs."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.costs.costs import Costs, uniform_costs
from synth.errors import SynthError
from synth.families import generate
from synth.families._lib.updates import with_updates
from synth.interop.torch_csv import to_torch_csv
from synth.op_kinds import OpKind
from synth.plan.reason import reason_of
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.error import ScheduleError
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered, lower
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import memory_usage, peak_bytes
from synth.schedule.verify import verify
from synth.schedule.version_facts import version_facts
from synth.schedule.weight_versions import BackwardReads, ForwardReads, WeightVersions

F, B, W, BW, STEP = OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP
PARAMETERS = 700


def costs(num_stages: int, parameters: int = PARAMETERS) -> Costs:
    return uniform_costs(
        num_stages,
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        saved_bytes=1000,
        output_bytes=10,
        parameter_bytes=parameters,
        gradient_bytes=700,
        static_bytes=2800,
    )


# The versions that the papers say are read, by stage and micro-batch: (by F, by B).
Printed = Callable[[int, int, int, int], tuple[int, int]]


def _same(version: int) -> tuple[int, int]:
    return version, version


PRINTED: dict[str, Printed] = {
    "pipedream": lambda n, k, s, j: _same(max(0, j - (n - 1 - s))),
    "pipedream:vertical": lambda n, k, s, j: _same(max(0, j - (n - 1))),
    "2bw": lambda n, k, s, j: _same(max(0, j // k - 1)),
    "delayed-update": lambda n, k, s, j: (max(0, j - 2 * (n - 1 - s)), j),
    "paci": lambda n, k, s, j: (max(0, j - (n - 1 - s)) // k, j // k),
    "paci:every=1": lambda n, k, s, j: (max(0, j - (n - 1 - s)), j),
}


@pytest.mark.parametrize("name", PRINTED)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_ops_read_the_versions_of_the_papers(name: str, n: int) -> None:
    schedule = generate(name, n, 4 * n, costs=costs(n))
    assert schedule.versions is not None
    k = schedule.versions.every
    lowered, _ = verify(schedule, costs(n))
    read = _read(lowered)
    for s in range(n):
        for j in range(4 * n):
            found = read[Op(F, s, j)], read[Op(BW, s, j)]
            assert found == PRINTED[name](n, k, s, j), (s, j)


# Delay of F, delay of B, drift, versions alive, by n and s.
FACTS: dict[str, Callable[[int, int], tuple[int, int, int, int]]] = {
    "1f1b": lambda n, s: (0, 0, 0, 1),
    "pipedream": lambda n, s: (n - 1 - s, n - 1 - s, 0, n - s),
    "pipedream:vertical": lambda n, s: (n - 1, n - 1, 0, n),
    "2bw": lambda n, s: (1, 1, 0, 2),
    "delayed-update": lambda n, s: (2 * (n - 1 - s), 0, 2 * (n - 1 - s), 1),
    "paci": lambda n, s: (int(s < n - 1), 0, int(s < n - 1), 1),
}


@pytest.mark.parametrize("name", FACTS)
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_delay_drift_and_versions_alive_are_the_printed_ones(name: str, n: int) -> None:
    """PipeDream stage s holds n − s versions, vertical sync n, 2BW two, the others one."""
    m = 6 * n * (n - 1)
    lowered, _ = verify(generate(name, n, m, costs=costs(n)), costs(n))
    assert [tuple(facts) for facts in version_facts(lowered)] == [
        FACTS[name](n, s) for s in range(n)
    ]


WPIPE = [(1, 2), (2, 2), (2, 4), (3, 3), (3, 5), (4, 4), (4, 6), (5, 5), (8, 8), (8, 16)]


@pytest.mark.parametrize(("n", "every"), [*WPIPE, (3, 2), (5, 4)])
def test_wpipe_has_two_versions_of_its_first_half_and_one_of_the_other(n: int, every: int) -> None:
    whole, m = costs(2 * n), 4 * every
    lowered, _ = verify(generate(f"wpipe:every={every}", n, m, costs=whole), whole)
    late, fresh = (1, 1, 0, 2), (0, 0, 0, 1)
    facts = [tuple(one) for one in version_facts(lowered)]
    assert facts == [late] * n + [fresh] * n
    read = _read(lowered)
    for j in range(m):
        for s in range(2 * n):
            version = max(0, j // every - 1) if s < n else j // every
            assert (read[Op(F, s, j)], read[Op(BW, s, j)]) == (version, version)


@pytest.mark.parametrize(("n", "every"), WPIPE)
@pytest.mark.parametrize("times", [(1, 2), (1, 3), (3, 4), (2, 2)])
def test_wpipe_is_idle_only_in_warm_up_and_drain_and_holds_no_more_than_2bw(
    n: int, every: int, times: tuple[int, int]
) -> None:
    forward, backward = times
    whole = uniform_costs(
        2 * n,
        forward_us=forward,
        backward_input_us=backward // 2,
        backward_weight_us=backward - backward // 2,
        saved_bytes=1,
        saved_w_bytes=1,
    )
    m, both = 4 * every, forward + backward
    lowered, line = verify(generate(f"wpipe:every={every}", n, m, costs=whole), whole)
    assert line.makespan_us == (2 * m + n - 1) * both
    held = peak_bytes(lowered)
    assert held == tuple(every + n - rank for rank in range(n))
    # Two halves of a stage are one of 2BW, whose first rank holds n.
    assert every > n or max(held) == 2 * n


@pytest.mark.parametrize("name", [name for name in FACTS if name != "1f1b"])
def test_memory_is_that_of_1f1b_with_the_versions_and_what_is_in_flight(name: str) -> None:
    n, m = 4, 24
    whole = costs(n).replace(
        stages=tuple(stage.replace(output_bytes=0) for stage in costs(n).stages)
    )
    lowered, _ = verify(generate(name, n, m, costs=whole), whole)
    for s, facts in enumerate(version_facts(lowered)):
        in_flight = 2 * (n - 1 - s) + 1 if name == "delayed-update" else n - s
        stage = whole.stages[s]
        expected = stage.static_bytes + (facts.alive - 1) * PARAMETERS
        expected += in_flight * stage.saved_bytes
        rise = max(stage.rise_bytes[F] - stage.saved_bytes, stage.rise_bytes[BW])
        assert expected <= peak_bytes(lowered)[s] <= expected + rise


def _read(lowered: Lowered) -> dict[Op, int]:
    assert lowered.versions is not None
    ops = [op for program in lowered.ops for op in program]
    return dict(zip(ops, lowered.versions.version.tolist(), strict=True))


class Replay:
    """Runs the programs of all ranks with counters, and keeps what each op reads.

    It is the other reading of versions: op by op, with a dictionary of copies by version.
    """

    def __init__(self, schedule: Schedule) -> None:
        assert schedule.versions is not None
        self.rule, self.schedule = schedule.versions, schedule
        self.read: dict[Op, int] = {}
        # Stage 0 first: vertical sync tells the others which version it has read.
        for program in schedule.programs:
            newest: dict[int, int] = {}
            for op in program:
                at = newest.get(op.stage, 0)
                if op.kind == STEP:
                    newest[op.stage] = at + 1
                    self.read[op] = at
                elif op.kind == W:
                    self.read[op] = -1
                else:
                    self.read[op] = self._version(op, at)

    def _version(self, op: Op, newest: int) -> int:
        if op.kind == F:
            if self.rule.forward == ForwardReads.VERTICAL and op.stage:
                return self.read[op._replace(stage=0)]
            if self.rule.forward == ForwardReads.PREVIOUS_BATCH:
                return max(0, op.microbatch // self.rule.every - 1)
            return newest
        stashed = self.rule.backward == BackwardReads.STASHED
        return self.read[op._replace(kind=F)] if stashed else newest

    def held(self, rank: int) -> Iterator[int]:
        """After each op of a rank, the older versions that ops behind it read."""
        program = self.schedule.programs[rank]
        newest: dict[int, int] = {}
        for place, op in enumerate(program):
            if op.kind == STEP:
                newest[op.stage] = newest.get(op.stage, 0) + 1
            later = {
                (other.stage, self.read[other])
                for other in program[place + 1 :]
                if other.kind not in (STEP, W)
            }
            yield len([1 for stage, v in later if v < newest.get(stage, 0)])


@st.composite
def asynchronous(draw: st.DrawFn) -> Schedule:
    """A pipeline with random numbers in flight, whole or split backwards, and a random rule."""
    n = draw(st.integers(1, 4))
    every = draw(st.integers(1, 3))
    m = every * draw(st.integers(1, 5))
    programs: list[list[Op]] = []
    most, is_split = 0, draw(st.booleans())
    for s in reversed(range(n)):
        most += draw(st.integers(1, 2))
        warmup, program = min(m, most - 1), [Op(F, s, j) for j in range(min(m, most - 1))]
        for j in range(m):
            program += [Op(F, s, i) for i in range(warmup + j, min(warmup + j + 1, m))]
            program += [Op(B, s, j), Op(W, s, j)] if is_split else [Op(BW, s, j)]
        programs.insert(0, program)
    made = Schedule.linear("random", m, with_updates(programs, every))
    rule = WeightVersions(
        every, draw(st.sampled_from(ForwardReads)), draw(st.sampled_from(BackwardReads))
    )
    return replace(made, versions=rule, buffering=Buffering(m, 3 * m))


@settings(max_examples=60, deadline=None)
@given(schedule=asynchronous())
def test_versions_and_their_bytes_are_those_of_programs_replayed_with_counters(
    schedule: Schedule,
) -> None:
    n = schedule.num_ranks
    replay, lowered = Replay(schedule), lower(schedule, costs(n))
    assert _read(lowered) == replay.read
    assert lowered.versions is not None
    is_there = all(
        replay.read[op] <= newest
        for op, newest in zip(
            (op for program in lowered.ops for op in program),
            lowered.versions.newest.tolist(),
            strict=True,
        )
    )
    if not is_there:
        with pytest.raises(ScheduleError, match="reads version"):
            verify(schedule, costs(n))
        return
    verify(schedule, costs(n))
    without = lower(schedule, costs(n, parameters=0))
    for rank in range(n):
        after = memory_usage(lowered, rank).after
        base = memory_usage(without, rank).after
        instructions = zip(lowered.programs[rank], after, base, strict=True)
        found = [a - b for i, a, b in instructions if i.op is not None]
        assert found == [PARAMETERS * number for number in replay.held(rank)]
        assert peak_bytes(lowered)[rank] == memory_usage(lowered, rank).peak_bytes


# Refusals of the verifier


def test_2bw_needs_one_micro_batch_less_than_ranks_in_a_batch() -> None:
    for n in (3, 4, 6):
        few = generate(f"2bw:every={n - 2}", n, 4 * (n - 2) * (n - 1), costs=costs(n))
        with pytest.raises(ScheduleError, match=r"rank 0, op \d+ \(F0\.\d+\) reads version 1 of"):
            verify(few, costs(n))
        verify(generate(f"2bw:every={n - 1}", n, 4 * (n - 1), costs=costs(n)), costs(n))


def _pipedream(m: int = 4) -> Schedule:
    return generate("pipedream", 2, m, costs=costs(2))


def _without(schedule: Schedule, op: Op) -> Schedule:
    programs = tuple(tuple(o for o in p if o != op) for p in schedule.programs)
    return replace(schedule, programs=programs)


def _exchanged(schedule: Schedule, one: Op, other: Op) -> Schedule:
    swap = {one: other, other: one}
    return replace(
        schedule, programs=tuple(tuple(swap.get(o, o) for o in p) for p in schedule.programs)
    )


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (_without(_pipedream(), Op(STEP, 1, 3)), "after 3 of them the program ends"),
        (_without(_pipedream(), Op(STEP, 1, 1)), "after 1 of them STEP1.2 stands there"),
        (
            _exchanged(_pipedream(), Op(STEP, 0, 1), Op(BW, 0, 2)),
            r"BW0.2\) adds to the gradient before STEP0.1 has taken",
        ),
        (_exchanged(_pipedream(), Op(STEP, 0, 3), Op(BW, 0, 3)), r"STEP0.3\): runs before BW0.3"),
        (replace(_pipedream(), versions=WeightVersions(3)), "does not divide 4"),
        (replace(_pipedream(), versions=None), r"STEP0.1\): updates run from 0 to 0"),
    ],
)
def test_updates_that_are_missing_or_out_of_order_are_refused(
    damaged: Schedule, message: str
) -> None:
    with pytest.raises(ScheduleError, match=message):
        verify(damaged, costs(2))


def test_pytorch_s_runtime_does_not_know_updates_between_ops() -> None:
    with pytest.raises(SynthError, match="PyTorch's runtime only behind them"):
        to_torch_csv(_pipedream())


def test_a_rank_that_shares_a_stage_holds_no_other() -> None:
    copies = replace(generate("chimera", 2, 2), versions=WeightVersions())
    with pytest.raises(ScheduleError, match="ranks 0, 1, which also hold stage 1"):
        verify(copies, costs(2))


def test_costs_that_do_not_know_the_parameters_are_refused() -> None:
    with pytest.raises(ScheduleError, match="profile again"):
        verify(_pipedream(), costs(2, parameters=0))


def test_a_batch_must_divide_the_micro_batches() -> None:
    with pytest.raises(SynthError, match="every 3 micro-batches does not divide 4"):
        generate("2bw:every=3", 2, 4)
    with pytest.raises(SynthError, match="needs 4 micro-batches on 4 ranks"):
        generate("2bw", 4, 3)


# The file


def test_a_plan_keeps_its_rule_and_one_with_a_flush_says_nothing_of_it() -> None:
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    sizes = _even(len(profile.layers), 4)
    made = generate("2bw", 4, 8, costs=None)
    plan = Plan.of(profile, sizes, made)
    read = Plan.from_json(plan.to_json())
    assert read.schedule() == made
    assert read.to_data()["versions"] == {
        "update_every": 4,
        "forward": "batch-1",
        "backward": "stashed",
    }
    read.check()
    assert "versions" not in Plan.of(profile, sizes, generate("1f1b", 4, 8)).to_data()


def _even(count: int, parts: int) -> list[int]:
    return [count // parts + (i < count % parts) for i in range(parts)]


def test_a_plan_without_a_flush_is_not_compared_with_1f1b_of_one_update() -> None:
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    plan = Plan.of(profile, _even(len(profile.layers), 4), generate("2bw", 4, 8))
    assert reason_of(plan, *plan.check()).endswith(
        "it updates every stage 2 times, a schedule with a flush once, so their times do not "
        "compare."
    )
