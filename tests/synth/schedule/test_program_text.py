"""Programs as lines of a plan file: a part that is repeated is written once."""

import json
import random

import pytest

from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.error import ScheduleError
from synth.schedule.files.plan_file import Plan
from synth.schedule.files.program_text import (
    MOST_OPS,
    check_size,
    num_ops,
    parse_programs,
    program_lines,
    program_text,
    repeating_text,
)
from synth.schedule.ops import Op
from synth.solver.tuning.search import SEARCH

FLUSH_FREE = (
    "pipedream",
    "pipedream:vertical",
    "2bw:every=8",
    "2bw:recompute,every=8",
    "delayed-update",
    "paci:every=8",
    "wpipe:every=8",
)


@pytest.mark.parametrize("name", FLUSH_FREE)
def test_a_line_is_as_long_for_any_number_of_micro_batches(name: str) -> None:
    """But for the digits of the numbers, and with several stages for a longer prologue."""
    lengths = []
    for m in (104, 304):
        schedule = generate(name, 4, m)
        lines = program_lines(schedule)
        assert parse_programs(lines).programs == schedule.programs
        lengths.append([line.count(" ") for line in lines])
    assert lengths[0] == lengths[1]
    assert max(lengths[0]) < 160


def test_pipedream_on_two_ranks_alternates_between_prologue_and_epilogue() -> None:
    assert program_lines(generate("pipedream", 2, 48)) == (
        "F0.0 [F0.1 BW0.0 STEP0]*47+1/1 BW0.47 STEP0.47",
        "[F1.0 BW1.0 STEP1]*48+1/1",
    )


def test_ranks_that_take_micro_batches_in_turn_count_those_of_all() -> None:
    first, second, last = program_lines(generate("pipedream:2-1", 3, 48))
    assert first == "F0.0 [F0.2 BW0.0 STEP0]*23+2/1 BW0.46 STEP0.23"
    assert second == "F0.1@1 [F0.3@1 BW0.1@1 STEP0@1]*23+2/1 BW0.47@1 STEP0.23@1"
    assert parse_programs([last]).programs == (generate("pipedream:2-1", 3, 48).programs[2],)


def _random_program(rng: random.Random, m: int) -> list[Op]:
    """Ops of two stages that alternate, each some micro-batches late, and a few changed places."""
    every = rng.choice((1, 2, 4))
    period = [(kind, stage) for kind in (OpKind.F, OpKind.BW, OpKind.STEP) for stage in range(2)]
    rng.shuffle(period)
    late = {one: rng.randint(0, 3) for one in period}
    ops = []
    for turn in range(m + 4):
        for kind, stage in period:
            j = turn - late[kind, stage]
            if kind == OpKind.STEP and 0 <= j < m and (j + 1) % every == 0:
                ops.append(Op(kind, stage, j // every))
            elif kind != OpKind.STEP and 0 <= j < m:
                ops.append(Op(kind, stage, j))
    for _ in range(rng.choice((0, 1, 3))):
        i, j = rng.randrange(len(ops)), rng.randrange(len(ops))
        ops[i], ops[j] = ops[j], ops[i]
    return ops


def test_any_program_is_read_as_it_was_written() -> None:
    rng, num_repeated = random.Random(0), 0
    for _ in range(150):
        m = rng.choice((4, 8, 12, 24))
        ops = _random_program(rng, m)
        text = repeating_text(ops, m)
        assert parse_programs([text]).programs == (tuple(ops),), text
        num_repeated += "[" in text
    assert 50 < num_repeated < 150


def test_a_plan_with_a_flush_is_written_op_by_op() -> None:
    schedule = generate("1f1b", 4, 48)
    assert program_lines(schedule) == tuple(map(program_text, schedule.programs))


def test_a_plan_file_has_the_short_lines_and_reads_the_long_ones() -> None:
    profile, schedule = Profile.load(find("zb-1.5b-p8-m24")), generate("pipedream", 4, 24)
    plan = Plan.of(profile, [6] * 4, schedule)
    data = json.loads(plan.to_json())
    assert data["programs"][3] == "[F3.0 BW3.0 STEP3]*24+1/1"
    assert Plan.from_json(plan.to_json()).schedule() == schedule
    data["programs"] = [*map(program_text, schedule.programs)]
    data["schema_version"] = 7
    del data["fingerprint"]
    earlier = Plan.from_json(json.dumps(data))
    assert earlier.schedule() == schedule
    earlier.check()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("F0.0 [F0.1 BW0.0]*9", r"rank 0, op 1: '\[F0.1' is not understood.*looks like"),
        ("[F0.1 BW0.0]*0+1/1", r"op 0: '\[F0.1' is not understood"),
        ("[F0.1 BW0.0]*2+0/1", r"op 0: '\[F0.1' is not understood"),
        ("[F0.1 [BW0.0]*2+1/1]*2+1/1", r"op 0: '\[F0.1' is not understood"),
        ("F0.0 [F0.1 X0.0]*3+1/1", "rank 0, op 2: op 'X0.0' is not understood"),
        ("F0.0 [ ]*999999999+1/0", "rank 0, op 1: the part that is repeated has no ops"),
    ],
)
def test_bodies_that_cannot_be_read_are_explained(line: str, words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        parse_programs([line])


@pytest.mark.parametrize(
    ("line", "num"),
    [
        ("", 0),
        ("F0.0 BW0.0  STEP0", 3),
        ("F0.0 [F0.1 BW0.0 STEP0]*47+1/1 BW0.47 STEP0.47", 1 + 3 * 47 + 2),
        ("[F0.0]*2+1/0 [BW0.0]*2+1/0", 4),
        ("[ ]*999999999+1/0", 0),
    ],
)
def test_ops_are_counted_without_making_them(line: str, num: int) -> None:
    assert num_ops(line) == num


@pytest.mark.parametrize(
    ("lines", "micro_batches", "words"),
    [
        (["[F0.0 BW0.0]*1200000+1/1"], 1_200_000, "have 2,400,000 ops.*at most 2,000,000 are read"),
        (["F0.0", "[F0.0 BW0.0]*999999999+1/1"], 4, "rank 1 1,999,999,998 of them"),
        (["[F0.0 BW0.0]*100000+1/1"], 4, "too many for 4 micro-batches in 1 stages"),
        (["F0.0 " * (MOST_OPS + 1)], 10**8, "have 2,000,001 ops"),
    ],
)
def test_programs_that_would_fill_the_memory_are_refused_by_their_length(
    lines: list[str], micro_batches: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        check_size(lines, 1, micro_batches)


@pytest.mark.parametrize(
    ("ranks", "stages", "micro_batches", "ops"),
    [(64, 64, 512, "FBW"), (32, 64, 4096, "FBWR"), (32, 128, 4096, "FB"), (1, 1, 2, "FBWROLUDAS")],
)
def test_the_longest_plans_of_pipelines_are_short_enough(
    ranks: int, stages: int, micro_batches: int, ops: str
) -> None:
    line = f"[{'F0.0 ' * (len(ops) * stages // ranks)}]*{micro_batches}+1/1 STEP0"
    check_size([line] * ranks, stages, micro_batches)


def test_the_largest_problem_of_the_solver_fits_into_a_file() -> None:
    assert SEARCH.most_ops // 3 * len("FBWR") <= MOST_OPS
