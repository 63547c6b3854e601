"""Published schedules that rebuild or move what forwards save: peaks, times, pictures."""

import pytest

from synth.costs.costs import HOST, Costs, uniform_costs
from synth.families import family_placement, generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links, PairLink
from synth.schedule.files.program_text import program_text
from synth.schedule.lowering.lower import Lowered
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import Timeline
from synth.schedule.verify import verify
from tests.synth.family_variants import family_variants
from tests.synth.picture import picture, rows

F, BW = 3, 6


def costs(num_stages: int, *, output_bytes: int = 0, links: Links | None = None) -> Costs:
    """F 3 and BW 6; F saves 1000 bytes; a boundary value has few."""
    return uniform_costs(
        num_stages,
        forward_us=F,
        backward_input_us=4,
        backward_weight_us=2,
        saved_bytes=1000,
        saved_w_bytes=1000,
        output_bytes=output_bytes,
        links=links,
    )


def judged(name: str, p: int, m: int, on: Costs) -> tuple[Lowered, Timeline]:
    return verify(generate(name, p, m, costs=on), on)


SIZES = [(1, 3), (2, 4), (4, 2), (4, 8), (5, 13), (8, 16)]


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_recomputing_takes_one_f_for_each_micro_batch_and_nothing_else(
    name: str, p: int, m: int
) -> None:
    # The last rank is never idle from its first R on; before it, R runs while ranks wait.
    kept, rebuilt = (judged(n, p, m, costs(p))[1] for n in (name, f"{name}:recompute"))
    assert kept.makespan_us == (m + p - 1) * (F + BW)
    assert rebuilt.makespan_us == kept.makespan_us + m * F


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (5, 15)])
def test_interleaved_stages_recompute_as_others_do(p: int, m: int) -> None:
    kept, rebuilt = (
        judged(f"interleaved:2{words}", p, m, costs(2 * p)) for words in ("", ",recompute")
    )
    assert kept[1].makespan_us == (2 * m + p - 1) * (F + BW)
    # With an odd number of ranks they may wait for one F more.
    longer_us = rebuilt[1].makespan_us - kept[1].makespan_us
    assert 2 * m * F <= longer_us <= 2 * m * F + (p % 2) * F
    assert peak_bytes(rebuilt[0]) == (1000,) * p
    assert "interleaved:2,recompute" not in family_variants()  # only if it is asked for


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_recomputing_leaves_one_stage_s_activations_and_the_inputs(p: int, m: int) -> None:
    # GPipe: N boundary values; 1F1B: min(N, D − r). The first rank's input are token ids.
    for name, inputs in (
        ("gpipe", [m] * p),
        ("1f1b", [min(m, p - rank) for rank in range(p)]),
    ):
        without = peak_bytes(judged(f"{name}:recompute", p, m, costs(p))[0])
        assert without == (1000,) * p
        found = peak_bytes(judged(f"{name}:recompute", p, m, costs(p, output_bytes=1))[0])
        for rank in range(1, p):
            in_flight = found[rank] - 1000 - inputs[rank]
            assert 0 <= in_flight <= 4


def test_r_overlaps_the_wait_for_the_gradient() -> None:
    # rank 0  F0 F1 R0 .. .. X0 -- R1 X1 --      R0 runs at 2, its gradient comes at 5.
    # rank 1  .. F0 F1 R0 ...
    drawn = """
        F0 F1 R0 .. .. .. X0 -- R1 X1 --
        .. F0 F1 R0 X0 -- R1 X1 -- .. ..
    """
    unit = uniform_costs(2, forward_us=1, backward_input_us=1, backward_weight_us=1)
    _, timeline = verify(generate("gpipe:recompute", 2, 2), unit)
    assert picture(timeline) == rows(drawn)


def test_bpipe_s_first_rank_sends_its_newest_micro_batch_to_the_last() -> None:
    # Four ranks: K = 3, and rank 0 would hold 4. Pairs are 0 with 3, and 1 with 2.
    programs = [program_text(program) for program in generate("bpipe", 4, 6).programs]
    assert programs[0] == (
        "F0.0 F0.1 O0.1 F0.2 O0.2 F0.3 BW0.0 L0.1 F0.4 O0.4 BW0.1 L0.2 F0.5 O0.5 BW0.2 L0.4 "
        "BW0.3 L0.5 BW0.4 BW0.5"
    )


@pytest.mark.parametrize(("p", "m"), [(4, 8), (5, 10), (6, 6), (7, 20), (8, 16), (12, 24)])
def test_bpipe_balances_memory_and_keeps_1f1b_s_time(p: int, m: int) -> None:
    on = costs(p)
    lowered, timeline = judged("bpipe", p, m, on)
    plain = judged("1f1b", p, m, on)[1]
    assert (timeline.makespan_us, timeline.period_us) == (plain.makespan_us, plain.period_us)
    bound = (p + 3) // 2  # ⌈(D + 2) / 2⌉
    peaks = [peak // 1000 for peak in peak_bytes(lowered)]
    held = [p - rank for rank in range(p)]
    assert peaks[: p // 2] == [min(bound, most) for most in held[: p // 2]]
    assert max(peaks) <= bound + 1
    even = uniform_costs(
        p,
        forward_us=2,
        backward_input_us=1,
        backward_weight_us=1,
        saved_bytes=1000,
        saved_w_bytes=1000,
    )
    assert max(peak_bytes(judged("bpipe", p, m, even)[0])) == 1000 * bound < 1000 * p


@pytest.mark.parametrize(("p", "m"), [(5, 10), (8, 16)])
def test_bpipe_s_moves_are_transfers_between_partners_of_what_f_saved(p: int, m: int) -> None:
    lowered, _ = judged("bpipe", p, m, costs(p))
    moved = [t for t in lowered.transfers if t.value.kind in ("out", "back")]
    assert moved
    assert {t.source + t.target for t in moved} == {p - 1}
    assert {t.num_bytes for t in moved} == {1000}
    evictions = [t for t in moved if t.value.kind == "out"]
    assert all(t.source < t.target for t in evictions)
    assert 2 * len(evictions) == len(moved)


def test_bpipe_s_moves_overlap_compute_between_partners_of_one_node() -> None:
    # Each takes as long as F; no pair of partners is a pair of neighbours here.
    p, m = 8, 24
    near = tuple(
        PairLink(source=rank, target=p - 1 - rank, latency_us=F)
        for rank in range(p)
        if abs(p - 1 - 2 * rank) > 1
    )
    moved = judged("bpipe", p, m, costs(p, links=Links(pairs=near)))[1]
    assert moved.makespan_us == judged("1f1b", p, m, costs(p))[1].makespan_us


@pytest.mark.parametrize("m", [8, 24])
def test_offloading_half_the_stages_lowers_the_peak_by_more_than_half_at_no_cost(m: int) -> None:
    # Two rounds on 8 ranks; a transfer to the host takes as long as F.
    p, on = 8, costs(16, links=Links(host=Link(latency_us=F)))
    lowered, timeline = judged("pipeoffload:2", p, m, on)
    plain, usual = judged("interleaved:2", p, m, on)
    assert timeline.makespan_us == usual.makespan_us
    assert max(peak_bytes(lowered)) <= max(peak_bytes(plain)) / 2
    # In and out overlap compute, and each other.
    assert {t.source for t in lowered.transfers if t.value.kind == "back"} == {HOST}


@pytest.mark.parametrize(
    ("rounds", "p", "m"),
    [(1, 4, 12), (1, 4, 13), (1, 8, 11), (2, 4, 12), (2, 8, 8), (2, 8, 24), (4, 4, 12), (4, 8, 24)],
)
def test_offloading_everything_leaves_four_micro_batches_of_a_stage_at_no_cost(
    rounds: int, p: int, m: int
) -> None:
    # One that is made, two before it on their way out, and one that is needed or on its way in.
    on = costs(p * rounds, links=Links(host=Link(latency_us=F)))
    lowered, timeline = judged(f"pipeoffload:{rounds},full", p, m, on)
    assert max(peak_bytes(lowered)) == 4000
    usual = judged(f"interleaved:{rounds}" if rounds > 1 else "1f1b", p, m, on)[1]
    assert timeline.makespan_us == usual.makespan_us


@pytest.mark.parametrize(("rounds", "p"), [(2, 4), (2, 6), (2, 8), (2, 16), (4, 6), (4, 8), (6, 8)])
def test_po_h_keeps_a_third_of_its_block_at_most_and_less_with_more_rounds(
    rounds: int, p: int
) -> None:
    # Half of the stages leave; of the others a rank keeps (v + 2) D / 8 micro-batches, of
    # (v + 1) D / 2, and three more: one that is made, one on its way out, one on its way in.
    on = costs(p * rounds, links=Links(host=Link(latency_us=F)))
    lowered, _ = judged(f"pipeoffload:{rounds},uniform", p, 3 * p, on)
    kept = -(-(rounds + 2) * p // 8)
    assert kept < max(peak_bytes(lowered)) // 1000 <= kept + 3


@pytest.mark.parametrize(("rounds", "p"), [(2, 6), (2, 10), (3, 4), (3, 8), (4, 6), (4, 10)])
def test_po_f_leaves_four_micro_batches_of_a_stage_however_many_ranks(rounds: int, p: int) -> None:
    on = costs(p * rounds, links=Links(host=Link(latency_us=F)))
    lowered, _ = judged(f"pipeoffload:{rounds},full,uniform", p, 3 * p, on)
    assert max(peak_bytes(lowered)) == 4000


@pytest.mark.parametrize(("rounds", "p"), [(2, 4), (2, 8), (4, 8)])
def test_po_f_on_a_block_whose_rounds_have_to_be_shifted_leaves_six(rounds: int, p: int) -> None:
    # D / 2 and v have a common divisor: sends wait four ops instead of two, and moves with them.
    on = costs(p * rounds, links=Links(host=Link(latency_us=F)))
    lowered, _ = judged(f"pipeoffload:{rounds},full,uniform", p, 3 * p, on)
    assert max(peak_bytes(lowered)) == 6000


@pytest.mark.parametrize("p", [2, 3, 4, 6, 8])
def test_uniform_offloading_costs_no_time_where_both_ways_take_as_long_as_a_layer(p: int) -> None:
    # The paper's k ≤ 1: out and back in F + B + W of the stage, 9 here.
    on = costs(2 * p, links=Links(host=Link(latency_us=4)))
    for m in (2, p, 3 * p):
        plain = judged("gis:2,uniform", p, m, on)[1]
        for amount in ("", ",full"):
            moved = judged(f"pipeoffload:2{amount},uniform", p, m, on)[1]
            assert moved.makespan_us == plain.makespan_us


def test_what_leaves_in_groups_needs_a_faster_link() -> None:
    on = costs(16, links=Links(host=Link(latency_us=4)))
    usual = judged("interleaved:2", 8, 24, on)[1].makespan_us
    assert judged("pipeoffload:2", 8, 24, on)[1].makespan_us > usual


def test_what_lives_too_shortly_for_a_slow_link_stays() -> None:
    # The last rank's B follows its F of the second round at once.
    on = costs(8, links=Links(host=Link(latency_us=F)))
    schedule = generate("pipeoffload:2,full", 4, 8, costs=on)
    moved = [{op.stage for op in ops if op.kind == OpKind.OFFLOAD} for ops in schedule.programs]
    assert moved == [{0, 4}, {1, 5}, {2, 6}, {3}]


@pytest.mark.parametrize("transfer_us", [1, F, 4 * F])
@pytest.mark.parametrize(
    ("name", "usual"),
    [
        ("pipeoffload:1,full", "1f1b"),
        ("pipeoffload:2", "interleaved:2"),
        ("pipeoffload:2,full", "interleaved:2"),
        ("pipeoffload:2,uniform", "gis:2,uniform"),
        ("pipeoffload:2,full,uniform", "gis:2,uniform"),
    ],
)
def test_offloading_costs_no_rank_memory_and_over_a_fast_link_no_time(
    name: str, usual: str, transfer_us: int
) -> None:
    # On few ranks, and on the last ones, what moves is there twice while it leaves and returns.
    for p in range(1, 7):
        for m in range(1, 10):
            num_stages = family_placement(name, p).num_stages
            on = costs(num_stages, links=Links(host=Link(latency_us=transfer_us)))
            (without, plain), (lowered, moved) = (judged(n, p, m, on) for n in (usual, name))
            assert moved.makespan_us == plain.makespan_us or transfer_us > F
            peaks = zip(peak_bytes(lowered), peak_bytes(without), strict=True)
            assert all(found <= most for found, most in peaks)
