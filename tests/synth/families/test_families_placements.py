"""Published schedules with several stages or two copies a rank: figures and closed forms."""

from math import gcd

import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.errors import SynthError
from synth.families import family_placement, generate, variants_for
from synth.profile.links import Link, Links, PairLink
from synth.schedule.model import Placement
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import Timeline
from synth.schedule.verify import verify
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.synth.effort import counted


def costs_of(name: str, num_ranks: int, times: tuple[int, int, int]) -> Costs:
    """Equal stages that keep one byte from F to W."""
    forward, backward, weight = times
    return uniform_costs(
        family_placement(name, num_ranks).num_stages,
        forward_us=forward,
        backward_input_us=backward,
        backward_weight_us=weight,
        saved_bytes=1,
        saved_w_bytes=1,
    )


def simulated(name: str, num_ranks: int, m: int, times: tuple[int, int, int]) -> Timeline:
    costs = costs_of(name, num_ranks, times)
    return verify(generate(name, num_ranks, m, costs=costs), costs)[1]


def bubble_us(name: str, num_ranks: int, m: int, times: tuple[int, int, int]) -> tuple[int, int]:
    """Makespan and period less the work."""
    line = simulated(name, num_ranks, m, times)
    assert len(set(line.work_us)) == 1
    return line.makespan_us - line.work_us[0], line.period_us - line.work_us[0]


@pytest.mark.parametrize("times", [(1, 1, 0), (1, 1, 1), (55, 58, 35)])
@pytest.mark.parametrize("rounds", [2, 3, 5])
@pytest.mark.parametrize("name", ["interleaved", "breadth-first"])
def test_v_rounds_divide_the_bubble_by_v(
    name: str, rounds: int, times: tuple[int, int, int]
) -> None:
    # (D − 1) / (v m + D − 1) of the makespan, for any m from D on, a multiple of D or not.
    for num_ranks, m in [(1, 3), (2, 5), (4, 4), (4, 7), (4, 8), (5, 13), (8, 15)]:
        expected = (num_ranks - 1) * sum(times)
        assert bubble_us(f"{name}:{rounds}", num_ranks, m, times) == (expected, expected)


@pytest.mark.parametrize("rounds", [2, 3])
@pytest.mark.parametrize(("num_ranks", "m"), [(2, 4), (4, 8), (4, 12), (8, 16)])
def test_interleaving_holds_what_its_paper_says(rounds: int, num_ranks: int, m: int) -> None:
    # Rank 0 holds its warm-up of (v − 1) D + 2 (D − 1) and one more: 1 + (D − 1) / (v D) times
    # what 1F1B holds, v D activations of these smaller stages.
    name = f"interleaved:{rounds}"
    costs = costs_of(name, num_ranks, (1, 1, 1))
    held = peak_bytes(verify(generate(name, num_ranks, m), costs)[0])
    assert max(held) == held[0] == min(m * rounds, rounds * num_ranks + num_ranks - 1)


@pytest.mark.parametrize("times", [(1, 1, 1), (55, 58, 35), (20, 18, 9), (10, 12, 9)])
@pytest.mark.parametrize("rounds", [2, 3])
def test_generalized_interleaving_has_what_its_paper_s_table_prints(
    rounds: int, times: tuple[int, int, int]
) -> None:
    # arXiv 2503.01328, table 1 and section 3.2, in times of one stage.
    forward, backward, weight = times
    for d, units in [(2, 1), (2, 3), (4, 2), (6, 1), (8, 3)]:
        base_us = (d - 1) * (forward + backward)
        more_us = (rounds - 1) * d // 2 * (forward + backward - weight)
        for name, group, expected_us in (
            (f"gis:{rounds}", d, base_us),
            (f"gis:{rounds},half", d // 2, base_us + more_us),
        ):
            assert bubble_us(name, d, units * d, times)[0] == expected_us
            assert max(held(name, d, units * d)) == group * (rounds - 1) + d


@pytest.mark.parametrize("rounds", [2, 3, 4, 6])
def test_uniform_repeating_holds_what_gis_h_holds_and_is_no_longer_than_its_turns(
    rounds: int,
) -> None:
    # The last round begins `span` turns after the first, and its B's D − 1 turns later; a turn has
    # F, B and W. Shifting rounds out of each other's way adds up to g − 1, g of D / 2 and rounds.
    for d in range(2, 9):
        interval = -(-d // 2)
        span = interval * (rounds - 1) + (rounds - 1) * gcd(interval, rounds) // rounds
        name = f"gis:{rounds},uniform"
        assert max(held(name, d, 3 * d)) == span + d
        assert 0 < bubble_us(name, d, 3 * d, (1, 1, 1))[0] <= 6 * span + 3 * (d - rounds)


@pytest.mark.parametrize("rounds", [2, 3])
@pytest.mark.parametrize(
    ("num_ranks", "m", "group"), [(4, 8, 8), (4, 15, 5), (2, 9, 3), (4, 14, 9)]
)
def test_larger_groups_keep_the_bubble_and_hold_more(
    rounds: int, num_ranks: int, m: int, group: int
) -> None:
    # Llama 3: what is left for the last group is D at least here, so that nothing waits for it.
    name = f"interleaved:{rounds},group={group}"
    assert bubble_us(name, num_ranks, m, (1, 1, 1)) == ((num_ranks - 1) * 3,) * 2
    costs = costs_of(name, num_ranks, (1, 1, 1))
    held = peak_bytes(verify(generate(name, num_ranks, m), costs)[0])
    assert max(held) == min(m * rounds, (rounds - 1) * group + 2 * (num_ranks - 1) + 1)


def test_a_last_group_smaller_than_the_ranks_is_waited_for() -> None:
    even, left_over = (
        bubble_us(f"interleaved:2{group}", 4, 9, (1, 1, 1))[0] for group in ("", ",group=4")
    )
    assert even == 9 < left_over


def test_groups_smaller_than_the_ranks_are_refused() -> None:
    with pytest.raises(SynthError, match=r"groups of 4 .* at least.* given group=3"):
        generate("interleaved:2,group=3", 4, 8)
    assert len(generate("interleaved:2,group=3", 4, 3).programs) == 4  # one group


@pytest.mark.parametrize("units", [1, 2, 3])
@pytest.mark.parametrize("num_ranks", [2, 4, 6, 8])
def test_two_directions_have_their_papers_closed_forms(num_ranks: int, units: int) -> None:
    d, m = num_ranks, units * num_ranks
    # F = B: (D − 2) / (2 m v + D − 2), however many units.
    for name, v in (
        ("chimera", 1), ("bitpipe", 2), ("bitpipe:2", 4), ("bitpipe-loop", 2), ("bitpipe-loop:3", 3)
    ):  # fmt: skip
        line = simulated(name, d, m, (1, 1, 0))
        assert line.makespan_us == line.period_us == 2 * m * v + d - 2
    # B = 2F: (D − 2) / (1.5 m + D − 2) and (D − 2) / (3 m + D − 2) for one unit; each further one
    # brings D − 2 of bubble where 2 B and not 2 F have to fit in between.
    assert simulated("chimera", d, m, (1, 1, 1)).makespan_us == units * (4 * d - 2) + d - 2
    for name in ("bitpipe", "bitpipe-loop"):
        assert simulated(name, d, m, (1, 1, 1)).makespan_us == units * (7 * d - 2) + d - 2


def held(name: str, num_ranks: int, m: int) -> tuple[int, ...]:
    costs = costs_of(name, num_ranks, (1, 1, 1))
    return peak_bytes(verify(generate(name, num_ranks, m), costs)[0])


@pytest.mark.parametrize("num_ranks", [2, 4, 6, 8])
def test_forward_doubling_removes_the_bubbles_between_units_for_twice_the_memory(
    num_ranks: int,
) -> None:
    # B = 2F: a middle rank begins D / 2 − 1 forwards late, and as many backwards follow its last.
    d, name = num_ranks, "chimera:doubling"
    for m in (2 * d, 4 * d, 6 * d):
        assert simulated(name, d, m, (1, 1, 1)).makespan_us == 3 * m + 3 * (d // 2 - 1)
        assert max(held(name, d, m)) == 2 * d


def test_backward_halving_makes_doubling_s_programs_of_half_micro_batches() -> None:
    halving, doubling = generate("chimera:halving", 4, 16), generate("chimera:doubling", 4, 16)
    assert (halving.programs, halving.name) == (doubling.programs, "chimera:halving")
    with pytest.raises(SynthError, match="even number of micro-batches, given 7: each is one half"):
        generate("chimera:halving", 4, 7)


@pytest.mark.parametrize("num_ranks", [2, 4, 6, 8, 12])
def test_mixpipe_holds_what_is_printed_and_has_the_least_bubble(num_ranks: int) -> None:
    # arXiv 2410.19367, appendix B: (3D − 2) / 2 activations with K as large as is useful.
    d = num_ranks
    for m in (2 * d, 2 * d + 2, 3 * d, 8 * d):
        assert simulated("mixpipe", d, m, (1, 1, 1)).makespan_us == 3 * m + 3 * (d // 2 - 1)
        assert max(held("mixpipe", d, m)) == (3 * d - 2) // 2


def test_mixpipe_trades_memory_for_time_by_how_much_it_injects() -> None:
    names = [f"mixpipe:inject={k}" for k in (1, 2, 3, 4, 6, 10)]
    times = [simulated(name, 8, 32, (1, 1, 1)).makespan_us for name in names]
    peaks = [max(held(name, 8, 32)) for name in names]
    assert times == sorted(set(times), reverse=True) and peaks == sorted(peaks)
    assert (peaks[0], peaks[-1]) == (2, 11)


@pytest.mark.parametrize("num_ranks", [4, 6, 8, 12])
def test_early_forwarding_has_its_printed_time_and_memory(num_ranks: int) -> None:
    # (D − 2) / (4 N + D − 2) and (3D − 3) / 2 micro-batches of two stages, with B = 2F.
    d, name = num_ranks, "bitpipe:1,early"
    for m in (3 * d // 2, 2 * d):
        line = simulated(name, d, m, (1, 1, 1))
        assert line.bubble_rate(line.makespan_us) == pytest.approx((d - 2) / (4 * m + d - 2))
        assert max(held(name, d, m)) <= 3 * d - 3
    for m in (3 * d, 8 * d):
        printed_us = 6 * m + 3 * (d // 2 - 1)
        assert printed_us <= simulated(name, d, m, (1, 1, 1)).makespan_us <= printed_us + 8
        assert max(held(name, d, m)) <= 3 * d - 3


def test_one_unit_cannot_have_the_printed_rate_of_early_forwarding() -> None:
    # It would be 27; the solver proves 28, which direct concatenation has.
    where = family_placement("bitpipe", 4)
    costs = uniform_costs(8, forward_us=1, backward_input_us=2, backward_weight_us=0)
    found = solve(Problem(costs, where, 4), counted(60))
    assert found.lower_bound_us == found.value_us == 28
    assert simulated("bitpipe:1,early", 4, 4, (1, 1, 1)).makespan_us == 28


def test_the_v_saves_the_transfers_of_its_turn() -> None:
    # Of 2D − 1 boundaries of a copy the V crosses ranks at all but one, the loop at all.
    def crossed(name: str) -> int:
        costs = costs_of(name, 4, (1, 1, 1))
        return len(verify(generate(name, 4, 8), costs)[0].transfer_table)

    assert (crossed("bitpipe"), crossed("bitpipe-loop")) == (8 * 2 * 6, 8 * 2 * 7)


@pytest.mark.parametrize("waves", [1, 2, 3])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
def test_waves_divide_hanayo_s_bubble(num_ranks: int, waves: int) -> None:
    d, name = num_ranks, f"hanayo:{waves}"
    for m in (d, 2 * d, 3 * d):
        assert bubble_us(name, d, m, (1, 1, 0)) == (2 * (d - 1),) * 2
    assert bubble_us(name, d, d, (1, 1, 1)) == (4 * (d - 1),) * 2
    costs = costs_of(name, d, (1, 1, 1))
    held = peak_bytes(verify(generate(name, d, 3 * d), costs)[0])
    assert max(held) <= 2 * waves * d  # D micro-batches, as in 1F1B


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_chimera_s_copies_hold_between_them_what_1f1b_s_first_rank_holds(num_ranks: int) -> None:
    # D/2 + 1 … D micro-batches, the middle ranks least, where 1F1B goes from 1 to D.
    costs = costs_of("chimera", num_ranks, (1, 1, 1))
    held = peak_bytes(verify(generate("chimera", num_ranks, 4 * num_ranks), costs)[0])
    assert max(held) <= num_ranks
    assert min(held) >= num_ranks // 2 + 1


@pytest.mark.parametrize("name", ["chimera", "bitpipe", "bitpipe-loop"])
def test_an_odd_number_of_ranks_has_no_two_directions(name: str) -> None:
    with pytest.raises(SynthError, match=f"{name} needs an even number of ranks, given 5"):
        generate(name, 5, 10)


def test_micro_batches_that_fill_no_unit_are_shared_out_evenly() -> None:
    schedule = generate("chimera", 4, 7)
    firsts = {op.microbatch: op.replica for program in schedule.programs for op in program}
    assert [firsts[j] for j in range(7)] == [0, 0, 1, 1, 0, 0, 1]


@pytest.mark.parametrize("times", [(1, 1, 1), (10, 10, 7), (55, 58, 35), (1, 1, 0)])
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_dualpipe_has_half_of_zb_1p_s_ranks_in_its_bubble(
    length: int, times: tuple[int, int, int]
) -> None:
    # A row of D / 2 ranks, or of D on the V: (row − 1) (F + B − W), at row · 2 + 1 activations.
    forward, backward, weight = times
    expected = (length - 1) * (forward + backward - weight)
    for name, num_ranks in (("dualpipe", 2 * length), ("dualpipe-v", length)):
        for m in (2 * num_ranks, 2 * num_ranks + 2, 3 * num_ranks * 2):
            costs = costs_of(name, num_ranks, times)
            lowered, line = verify(generate(name, num_ranks, m), costs)
            assert line.makespan_us - line.work_us[0] == expected
            assert max(peak_bytes(lowered)) == 2 * length + 1


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("m", [1, 2, 5, 8])
def test_gems_takes_a_micro_batch_s_way_back_for_each(num_ranks: int, m: int) -> None:
    # B = 2F: each micro-batch costs F + D · B, and the first its way there.
    costs = costs_of("gems", num_ranks, (1, 1, 1))
    lowered, line = verify(generate("gems", num_ranks, m), costs)
    assert line.makespan_us == (num_ranks - 1) + m * (1 + 2 * num_ranks)
    assert max(peak_bytes(lowered)) == 1


@pytest.mark.parametrize("times", [(1, 1, 1), (10, 10, 7), (10, 12, 8), (5, 4, 4)])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 8])
def test_zb_v_has_no_bubble_but_what_times_differ(
    num_ranks: int, times: tuple[int, int, int]
) -> None:
    # Each of the 2 (D − 1) steps of the parallelogram is off by what two ops differ at most.
    for m in (2 * num_ranks - 1, 2 * num_ranks, 3 * num_ranks + 1):
        _, period_us = bubble_us("zb-v", num_ranks, m, times)
        assert period_us <= 2 * (num_ranks - 1) * (max(times) - min(times))


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5, 6, 7, 8])
def test_the_v_schedules_keep_their_memory_and_their_bubbles(num_ranks: int) -> None:
    d = num_ranks
    # (D + 4) // 3, (D + 2) // 2 and D micro-batches, of two stages a rank; 1F1B's bubble, and of
    # it (in unit times) two thirds, half and nothing.
    promised = {"v-min": ((d + 4) // 3, 2 / 3), "v-half": ((d + 2) // 2, 1 / 2), "zb-v": (d, 0.0)}
    for name, (micro_batches, share) in promised.items():
        for m in (2 * d, 3 * d + 1):
            costs = costs_of(name, d, (1, 1, 1))
            lowered, line = verify(generate(name, d, m, costs=costs), costs)
            assert max(peak_bytes(lowered)) == 2 * micro_batches
            assert line.period_us - line.work_us[0] <= share * 6 * (d - 1)


@pytest.mark.parametrize("name", ["v-min", "v-half", "zb-v"])
def test_fitting_to_unequal_stages_keeps_the_peak_and_never_loses_time(name: str) -> None:
    unit = generate(name, 4, 12)
    equal = costs_of(name, 4, (30, 40, 20))
    stages = [
        stage.model_copy(
            update={"duration_us": {k: us + 3 * (s % 3) for k, us in stage.duration_us.items()}}
        )
        for s, stage in enumerate(equal.stages)
    ]
    costs = Costs(stages=tuple(stages))
    drawn, fitted = verify(unit, costs), verify(generate(name, 4, 12, costs=costs), costs)
    assert fitted[1].period_us <= drawn[1].period_us
    assert max(peak_bytes(fitted[0])) <= max(peak_bytes(drawn[0]))


def copied_costs(links: Links, gradient_bytes: int) -> Costs:
    """Eight equal stages of 100 bytes each way, F = B = W = 100 µs."""
    return uniform_costs(
        8,
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        links=links,
        output_bytes=100,
        gradient_bytes=gradient_bytes,
    )


def makespan_us(name: str, costs: Costs) -> int:
    return verify(generate(name, 4, 8, costs=costs), costs)[1].makespan_us


def test_eager_synchronization_hides_what_late_synchronization_waits_for() -> None:
    # 500 bytes at 2.5 bytes per µs: a ring of two takes 200 µs. Each rank is in those of its four
    # stages, one after another: late, all four come behind its last backward, of stage 0 or 3.
    costs = copied_costs(Links(default=Link(bandwidth_bytes_per_s=2.5e6)), 500)
    alone = copied_costs(Links(default=Link(bandwidth_bytes_per_s=2.5e6)), 0)
    for name in ("bitpipe:1", "bitpipe:1,early", "bitpipe-loop:2"):
        computing_us = makespan_us(name, alone)
        eager_us, late_us = makespan_us(name, costs), makespan_us(f"{name},late-sync", costs)
        assert late_us == computing_us + 4 * 200
        assert computing_us < eager_us <= computing_us + 2 * 200


def test_of_the_ablations_the_v_matters_less_than_eager_synchronization() -> None:
    # Their Table 5 says so of gradients much larger than activations.
    costs = copied_costs(Links(default=Link(latency_us=2, bandwidth_bytes_per_s=1e7)), 5000)
    whole, looped, late = (
        makespan_us(name, costs) for name in ("bitpipe:1", "bitpipe-loop:2", "bitpipe:1,late-sync")
    )
    assert whole < looped < late


def two_nodes(*nodes: tuple[int, int]) -> Links:
    """Four ranks: 40 bytes per µs within a node, 1 between nodes."""
    pairs = tuple(
        PairLink(source=a, target=b, bandwidth_bytes_per_s=4e7)
        for node in nodes
        for a, b in (node, node[::-1])
    )
    return Links(default=Link(bandwidth_bytes_per_s=1e6), pairs=pairs)


def test_copies_of_a_stage_on_one_node_pay_where_gradients_are_large() -> None:
    # Rank r and rank 3 − r hold copies of the same stages. BitPipe puts them on one node, so that
    # gradients stay inside and activations cross; with neighbours together it is the other way.
    copies_together, neighbours_together = two_nodes((0, 3), (1, 2)), two_nodes((0, 1), (2, 3))
    for gradient_bytes, better, worse in (
        (4000, copies_together, neighbours_together),
        (40, neighbours_together, copies_together),
    ):
        times_us = [
            makespan_us("bitpipe:1", copied_costs(links, gradient_bytes))
            for links in (better, worse)
        ]
        assert times_us[0] < times_us[1]


@pytest.mark.parametrize(
    ("num_ranks", "num_layers", "even"),
    [(2, 12, 2), (4, 24, 2), (4, 12, 3), (2, 10, 5), (3, 35, 0)],
)
def test_the_fewest_rounds_that_divide_the_layers_are_compared_too(
    num_ranks: int, num_layers: int, even: int
) -> None:
    found = {name for name in variants_for(num_ranks, num_layers) if "breadth-first:" in name}
    rounds = {int(name.split(":")[1].split(",")[0]) for name in found}
    assert rounds == ({2, even} if even else {2})


def test_the_rounds_for_many_layers_need_no_placement_each(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted_placement(name: str, num_ranks: int) -> Placement:
        made.append(name)
        return placement(name, num_ranks)

    monkeypatch.setattr("synth.families._lib.family.placement", counted_placement)
    variants_for(8, 10_000)
    assert 0 < len(made) < 250  # one for each number of rounds would be thousands
