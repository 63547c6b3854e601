"""Every family beside its grid: its paper's picture, its authors' order, or one made by hand."""

import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.families import families, family_placement, generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.files.program_text import program_text
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import verify
from tests.synth.grids import (
    BITPIPE_AS_DRAWN,
    GRIDS,
    MEGATRON_S_ORDER,
    PRINTED,
    PROGRAMS,
    V_AUTHORS,
)
from tests.synth.picture import picture, rows


def costs_of(name: str, num_ranks: int, unit_us: int = 1, weight_us: int | None = None) -> Costs:
    """Equal stages, F = B = W unless W is given; a transfer to the host takes as long as F."""
    return uniform_costs(
        family_placement(name, num_ranks).num_stages,
        forward_us=unit_us,
        backward_input_us=unit_us,
        backward_weight_us=unit_us if weight_us is None else weight_us,
        saved_bytes=1,
        saved_w_bytes=1,
        links=Links(host=Link(latency_us=unit_us)),
    )


def made(name: str, num_ranks: int, m: int, costs: Costs) -> Schedule:
    """The schedule; a family with limits gets five micro-batches, between ZB-1p's and ZB-2p's."""
    limit = {"zb-limit": 5, "zb-v-limit": 2 * 5}.get(name)
    caps = None if limit is None else [limit] * num_ranks
    return generate(name, num_ranks, m, costs=costs, caps_bytes=caps)


def programs(schedule: Schedule) -> list[str]:
    return [program_text(program) for program in schedule.programs]


def test_every_family_has_a_grid() -> None:
    names = [name for name, *_ in GRIDS] + [name for name, *_ in PROGRAMS]
    drawn = {name.split(":")[0] for name in names}
    assert drawn == set(families())


@pytest.mark.parametrize(("name", "num_ranks", "m", "weight_us"), GRIDS)
def test_a_family_looks_like_its_grid(name: str, num_ranks: int, m: int, weight_us: int) -> None:
    costs = costs_of(name, num_ranks, weight_us=weight_us)
    _, timeline = verify(made(name, num_ranks, m, costs), costs)
    assert picture(timeline) == rows(GRIDS[name, num_ranks, m, weight_us])


@pytest.mark.parametrize(("name", "num_ranks", "m"), PROGRAMS)
def test_a_family_that_moves_activations_has_its_programs(
    name: str, num_ranks: int, m: int
) -> None:
    costs = costs_of(name, num_ranks, unit_us=2)
    found = programs(made(name, num_ranks, m, costs))
    assert found == rows(PROGRAMS[name, num_ranks, m])


def test_bitpipe_has_the_order_and_the_length_that_its_authors_draw() -> None:
    schedule = generate("bitpipe", 4, 4)
    ours = [
        [("X" if op.kind == OpKind.BW else "F", op.stage < 4, op.microbatch) for op in program]
        for program in schedule.programs
    ]
    drawn = [
        [
            (cell[0].upper(), cell[0].isupper(), int(cell[1:]))
            for cell in row.split()
            if cell not in ("..", "--")
        ]
        for row in rows(BITPIPE_AS_DRAWN)
    ]
    assert ours == drawn
    timeline = verify(schedule, costs_of("bitpipe", 4))[1]
    assert [len(row.split()) for row in rows(BITPIPE_AS_DRAWN)] == [timeline.makespan_us] * 4


@pytest.mark.parametrize("name", PRINTED)
def test_interleaving_has_the_cells_that_pipeoffload_s_paper_prints(name: str) -> None:
    schedule = generate(name, 4, 8)
    found = [" ".join(str(op.microbatch + 1) for op in program) for program in schedule.programs]
    assert found == rows(PRINTED[name])


def test_groups_of_three_are_megatron_s_example() -> None:
    first = generate("interleaved:2,group=3", 2, 5).programs[0]
    chunks = [op.stage // 2 + 1 for op in first]
    signed = [
        chunk if op.kind == OpKind.F else -chunk for chunk, op in zip(chunks, first, strict=True)
    ]
    assert signed == [int(number) for number in MEGATRON_S_ORDER.split()]


def read(drawn: str, num_ranks: int, like: Schedule) -> Schedule:
    """The schedule of a grid without X."""
    found = []
    for rank, row in enumerate(rows(drawn)):
        cells = [cell for cell in row.split() if cell != ".."]
        found.append(
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
    return Schedule(like.placement, m, tuple(found), "authors", like.buffering)


@pytest.mark.parametrize(("name", "makespan_us", "held"), [("v-half", 53, 6), ("v-min", 59, 4)])
def test_the_v_schedules_are_as_short_as_their_authors_in_the_same_memory(
    name: str, makespan_us: int, held: int
) -> None:
    costs = costs_of(name, 4)
    ours = generate(name, 4, 8, costs=costs)
    for schedule in (ours, read(V_AUTHORS[name], 4, ours)):
        lowered, timeline = verify(schedule, costs)
        assert (timeline.makespan_us, timeline.period_us) == (makespan_us, makespan_us)
        assert peak_bytes(lowered) == (held,) * 4
