"""Small grids of published schedules that stand nowhere else, and their authors' own orders."""

import pytest

from synth.costs import uniform_costs
from synth.families import family_placement, generate
from synth.kinds import OpKind
from synth.profile import Link, Links
from synth.schedule import Op, Schedule, peak_bytes, verify
from synth.schedule.file import program_text
from tests.synth.picture import picture, rows

# As in test_families_placements.py: F = B = 1, lower case the second stage, X is BW (1 where W is
# 0); wide ones go on in a further block.
PICTURES = {
    # Qi et al. 2024, placed by V-Half's block; ends as early as the authors' order below.
    ("v-half", 4, 8, 1): """
        F0 F1 F2 F3 F4 .. .. f0 b0 w0 f1 b1 w1 .. f2 b2 B0 W0 w2 f3 F5 b3 B1 W1 w3 f4 F6 b4
        .. F0 F1 F2 F3 .. f0 .. f1 b0 w0 .. b1 f2 w1 B0 W0 F4 f3 b2 w2 B1 W1 F5 f4 b3 w3 B2
        .. .. F0 F1 F2 f0 F3 f1 .. .. b0 w0 f2 b1 B0 W0 w1 f3 F4 .. B1 b2 W1 f4 w2 F5 B2 b3
        .. .. .. F0 f0 F1 f1 F2 f2 .. .. b0 w0 B0 W0 F3 f3 b1 w1 B1 W1 F4 f4 b2 w2 B2 W2 F5

        B2 W2 w4 f5 F7 b5 B3 W3 w5 f6 b6 w6 B4 W4 .. f7 b7 B5 W5 B6 w7 W6 .. B7 W7
        W2 F6 f5 b4 w4 B3 W3 F7 f6 b5 w5 B4 W4 b6 f7 w6 B5 b7 B6 W5 w7 W6 B7 W7 ..
        W2 f5 w3 F6 B3 b4 W3 f6 w4 F7 B4 b5 W4 f7 b6 B5 w5 B6 b7 W5 w6 B7 W6 w7 W7
        f5 b3 w3 B3 W3 F6 f6 b4 w4 B4 W4 F7 f7 b5 B5 b6 B6 w5 W5 b7 B7 w6 W6 w7 W7
    """,
    # V-Min's block.
    ("v-min", 4, 8, 1): """
        F0 F1 .. .. .. .. .. f0 b0 w0 F2 .. .. f1 b1 B0 w1 W0 F3 f2 b2 B1 w2 W1 F4 f3 b3 B2
        .. F0 .. .. .. .. f0 F1 .. b0 w0 .. f1 F2 B0 b1 W0 w1 f2 F3 B1 b2 W1 w2 f3 F4 B2 b3
        .. .. F0 .. .. f0 .. .. F1 .. b0 f1 w0 B0 F2 W0 b1 f2 w1 B1 F3 W1 b2 f3 w2 B2 F4 W2
        .. .. .. F0 f0 .. .. .. .. F1 f1 b0 B0 w0 W0 F2 f2 b1 B1 w1 W1 F3 f3 b2 B2 w2 W2 F4

        w3 W2 F5 f4 b4 B3 w4 W3 F6 f5 b5 B4 w5 W4 F7 f6 b6 B5 w6 W5 .. f7 b7 B6 w7 W6 .. ..
        W2 w3 f4 F5 B3 b4 W3 w4 f5 F6 B4 b5 W4 w5 f6 F7 B5 b6 W5 w6 f7 .. B6 b7 W6 w7 .. ..
        b3 f4 w3 B3 F5 W3 b4 f5 w4 B4 F6 W4 b5 f6 w5 B5 F7 W5 b6 f7 w6 B6 W6 .. b7 w7 .. B7
        f4 b3 B3 w3 W3 F5 f5 b4 B4 w4 W4 F6 f6 b5 B5 w5 W5 F7 f7 b6 B6 w6 W6 .. .. b7 B7 w7

        .. B7 W7
        B7 W7 ..
        W7 .. ..
        W7 .. ..
    """,
    # DeepSeek-AI 2025, DualPipeV: four ranks, ten micro-batches.
    ("dualpipe-v", 4, 10, 1): """
        F0 F1 F2 F3 F4 F5 F6 f0 b0 w0 f1 b1 w1 f2 b2 w2 f3 F7 x3 -- f4 X0 -- F8 x4 -- f5 X1
        .. F0 F1 F2 F3 F4 f0 F5 f1 b0 w0 f2 b1 w1 f3 F6 x2 -- f4 X0 -- F7 x3 -- f5 X1 -- F8
        .. .. F0 F1 F2 f0 F3 f1 F4 f2 b0 w0 f3 F5 x1 -- f4 X0 -- F6 x2 -- f5 X1 -- F7 x3 --
        .. .. .. F0 f0 F1 f1 F2 f2 F3 f3 F4 x0 -- f4 X0 -- F5 x1 -- f5 X1 -- F6 x2 -- f6 X2

        -- F9 x5 -- f6 X2 -- x6 -- f7 .. X3 -- x7 -- f8 .. X4 -- x8 -- f9 .. X5 -- x9 -- B6
        x4 -- f6 X2 -- F9 x5 -- f7 X3 -- x6 -- f8 .. X4 -- x7 -- f9 .. X5 -- x8 -- X6 -- b9
        f6 X2 -- F8 x4 -- f7 X3 -- F9 x5 -- f8 X4 -- x6 -- f9 .. X5 -- x7 -- X6 -- x8 -- B7
        -- F7 x3 -- f7 X3 -- F8 x4 -- f8 X4 -- F9 x5 -- f9 X5 -- x6 -- X6 -- x7 -- X7 -- b8

        W6 B7 W7 B8 W8 B9 W9
        B7 w9 B8 W7 B9 W8 W9
        b9 B8 W7 B9 w9 W8 W9
        B8 b9 B9 w8 W8 w9 W9
    """,
    # Groups of three on two ranks: F of the second round begins a slot after it could.
    ("interleaved:2,group=3", 2, 6, 0): """
        F0 F1 F2 f0 f1 f2 x0 F3 x1 F4 x2 F5 X0 f3 X1 f4 X2 f5 x3 .. x4 .. x5 X3 X4 X5
        .. F0 F1 F2 f0 x0 f1 x1 f2 x2 F3 X0 F4 X1 F5 X2 f3 x3 f4 x4 f5 x5 X3 X4 X5 ..
    """,
    # Five micro-batches in even groups of three and two.
    ("interleaved:2", 2, 5, 0): """
        F0 F1 F2 f0 f1 f2 x0 F3 x1 F4 x2 f3 X0 f4 X1 .. X2 .. x3 x4 X3 X4
        .. F0 F1 F2 f0 x0 f1 x1 f2 x2 F3 X0 F4 X1 f3 X2 f4 x3 x4 X3 X4 ..
    """,
    # One group of all: as Llama 3 runs fewer micro-batches than a multiple of the ranks.
    ("interleaved:2,group=6", 4, 6, 0): """
        F0 F1 F2 F3 F4 F5 f0 f1 f2 f3 f4 f5 .. x0 .. x1 .. x2 .. x3 .. x4 .. x5 X0 X1 X2 X3
        .. F0 F1 F2 F3 F4 F5 f0 f1 f2 f3 f4 x0 f5 x1 .. x2 .. x3 .. x4 .. x5 X0 X1 X2 X3 X4
        .. .. F0 F1 F2 F3 F4 F5 f0 f1 f2 x0 f3 x1 f4 x2 f5 x3 .. x4 .. x5 X0 X1 X2 X3 X4 X5
        .. .. .. F0 F1 F2 F3 F4 F5 f0 x0 f1 x1 f2 x2 f3 x3 f4 x4 f5 x5 X0 X1 X2 X3 X4 X5 ..

        X4 X5
        X5 ..
        .. ..
        .. ..
    """,
}


@pytest.mark.parametrize(("name", "num_ranks", "m", "weight_us"), PICTURES)
def test_a_family_looks_like_its_grid(name: str, num_ranks: int, m: int, weight_us: int) -> None:
    costs = uniform_costs(
        family_placement(name, num_ranks).num_stages,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=weight_us,
        saved_bytes=1,
        saved_w_bytes=1,
    )
    _, timeline = verify(generate(name, num_ranks, m, costs=costs), costs)
    assert picture(timeline) == rows(PICTURES[name, num_ranks, m, weight_us])


# What the authors' program (sail-sg/zero-bubble-pipeline-parallelism, zbv_greedy.py) makes of their
# two building blocks for F = B = W: they, too, squeeze and reorder by a rule that is not printed.
AUTHORS = {
    "v-half": """
        F0 F1 F2 F3 F4 .. .. f0 b0 w0 f1 b1 w1 f2 .. .. B0 b2 w2 f3 W0 F5 B1 b3 w3 f4 W1 F6
        .. F0 F1 F2 F3 .. f0 .. f1 b0 w0 f2 b1 w1 .. B0 W0 F4 f3 b2 w2 B1 W1 F5 f4 b3 w3 B2
        .. .. F0 F1 F2 f0 .. f1 .. f2 b0 w0 F3 b1 B0 w1 W0 f3 F4 .. B1 b2 w2 f4 W1 F5 B2 b3
        .. .. .. F0 f0 F1 f1 F2 f2 .. .. b0 w0 B0 W0 F3 f3 b1 w1 B1 W1 F4 f4 b2 w2 B2 W2 F5

        B2 b4 w4 f5 W2 F7 B3 b5 w5 f6 b6 w6 B4 W3 W4 f7 b7 B5 w7 B6 W5 W6 .. B7 W7
        W2 F6 f5 b4 w4 B3 F7 W3 f6 b5 w5 B4 b6 w6 f7 W4 B5 b7 B6 w7 W5 W6 B7 W7 ..
        w3 f5 W2 F6 B3 b4 w4 f6 W3 F7 B4 b5 w5 f7 b6 B5 w6 B6 b7 w7 W4 B7 W5 W6 W7
        f5 b3 w3 B3 F6 W3 f6 b4 B4 w4 F7 W4 f7 b5 B5 b6 B6 w5 w6 b7 B7 w7 W5 W6 W7
    """,
    "v-min": """
        F0 F1 F2 .. .. .. .. f0 b0 w0 f1 b1 w1 .. .. B0 W0 F3 .. f2 b2 B1 w2 W1 F4 f3 b3 B2
        .. F0 F1 .. .. .. f0 .. f1 b0 w0 F2 .. .. B0 b1 w1 W0 f2 F3 B1 b2 w2 W1 f3 F4 B2 b3
        .. .. F0 F1 .. f0 .. f1 .. .. b0 w0 F2 B0 W0 .. b1 f2 w1 B1 F3 W1 b2 f3 w2 B2 F4 W2
        .. .. .. F0 f0 F1 f1 .. .. .. .. b0 B0 w0 W0 F2 f2 b1 B1 w1 W1 F3 f3 b2 B2 w2 W2 F4

        w3 W2 F5 f4 b4 B3 w4 W3 F6 f5 b5 B4 w5 W4 F7 f6 b6 B5 w6 W5 .. f7 b7 B6 w7 W6 .. ..
        w3 W2 f4 F5 B3 b4 w4 W3 f5 F6 B4 b5 w5 W4 f6 F7 B5 b6 w6 W5 f7 .. B6 b7 w7 W6 .. ..
        b3 f4 w3 B3 F5 W3 b4 f5 w4 B4 F6 W4 b5 f6 w5 B5 F7 W5 b6 f7 w6 B6 W6 .. b7 w7 .. B7
        f4 b3 B3 w3 W3 F5 f5 b4 B4 w4 W4 F6 f6 b5 B5 w5 W5 F7 f7 b6 B6 w6 W6 .. .. b7 B7 w7

        .. B7 W7
        B7 W7 ..
        W7 .. ..
        W7 .. ..
    """,
}


def read(drawn: str, num_ranks: int, like: Schedule) -> Schedule:
    """The schedule of a grid without X."""
    programs = []
    for rank, row in enumerate(rows(drawn)):
        cells = [cell for cell in row.split() if cell != ".."]
        programs.append(
            tuple(
                Op(
                    OpKind(cell[0].upper()),
                    rank if cell[0].isupper() else 2 * num_ranks - 1 - rank,
                    int(cell[1:]),
                )
                for cell in cells
            )
        )
    m = like.num_micro_batches
    return Schedule(like.placement, m, tuple(programs), "authors", like.buffering)


@pytest.mark.parametrize(("name", "makespan_us", "held"), [("v-half", 53, 6), ("v-min", 59, 4)])
def test_the_v_schedules_are_as_short_as_their_authors_in_the_same_memory(
    name: str, makespan_us: int, held: int
) -> None:
    costs = uniform_costs(
        8,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        saved_bytes=1,
        saved_w_bytes=1,
    )
    ours = generate(name, 4, 8, costs=costs)
    for schedule in (ours, read(AUTHORS[name], 4, ours)):
        lowered, timeline = verify(schedule, costs)
        assert (timeline.makespan_us, timeline.period_us) == (makespan_us, makespan_us)
        assert peak_bytes(lowered) == (held,) * 4


# Moves take no time, so these are written as programs. Rank 0 holds three at most, K of four
# ranks, and rank 3 what rank 0 sent it; ranks 1 and 2 are 1F1B's.
BPIPE = """
F0.0 F0.1 O0.1 F0.2 O0.2 F0.3 BW0.0 L0.1 F0.4 O0.4 BW0.1 L0.2 BW0.2 L0.4 BW0.3 BW0.4
F1.0 F1.1 F1.2 BW1.0 F1.3 BW1.1 F1.4 BW1.2 BW1.3 BW1.4
F2.0 F2.1 BW2.0 F2.2 BW2.1 F2.3 BW2.2 F2.4 BW2.3 BW2.4
K0.1 K0.2 F3.0 BW3.0 F3.1 BW3.1 F3.2 BW3.2 G0.1 F3.3 K0.4 BW3.3 G0.2 F3.4 BW3.4 G0.4
"""


def programs(schedule: Schedule) -> list[str]:
    return [program_text(program) for program in schedule.programs]


def test_bpipe_pairs_the_first_rank_with_the_last() -> None:
    assert programs(generate("bpipe", 4, 5)) == BPIPE.split("\n")[1:-1]


# F, B and W of 2, and as long for a transfer to the host or back.
OFFLOADED = {
    ("pipeoffload:1,full", 3, 4): """
F0.0 O0.0 F0.1 O0.1 F0.2 O0.2 L0.0 BW0.0 L0.1 F0.3 O0.3 BW0.1 L0.2 BW0.2 L0.3 BW0.3
F1.0 O1.0 F1.1 O1.1 L1.0 BW1.0 L1.1 F1.2 O1.2 BW1.1 L1.2 F1.3 O1.3 BW1.2 L1.3 BW1.3
F2.0 BW2.0 F2.1 BW2.1 F2.2 BW2.2 F2.3 BW2.3
""",
    ("pipeoffload:2", 2, 2): """
F0.0 O0.0 F0.1 O0.1 F2.0 F2.1 BW2.0 L0.0 BW2.1 L0.1 BW0.0 BW0.1
F1.0 O1.0 F1.1 O1.1 F3.0 BW3.0 F3.1 L1.0 BW3.1 L1.1 BW1.0 BW1.1
""",
    ("pipeoffload:2,full", 2, 2): """
F0.0 O0.0 F0.1 O0.1 F2.0 O2.0 F2.1 O2.1 L2.0 BW2.0 L2.1 L0.0 BW2.1 L0.1 BW0.0 BW0.1
F1.0 O1.0 F1.1 O1.1 F3.0 BW3.0 F3.1 L1.0 BW3.1 L1.1 BW1.0 BW1.1
""",
}


@pytest.mark.parametrize(("name", "num_ranks", "m"), OFFLOADED)
def test_pipeoffload_sends_away_at_once_and_calls_back_in_time(
    name: str, num_ranks: int, m: int
) -> None:
    costs = uniform_costs(
        family_placement(name, num_ranks).num_stages,
        forward_us=2,
        backward_input_us=2,
        backward_weight_us=2,
        saved_bytes=1,
        saved_w_bytes=1,
        links=Links(host=Link(latency_us=2)),
    )
    made = generate(name, num_ranks, m, costs=costs)
    assert programs(made) == OFFLOADED[name, num_ranks, m].split("\n")[1:-1]
