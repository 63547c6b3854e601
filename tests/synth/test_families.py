"""Published schedules: their papers' figures, closed forms and measured bubble rates."""

from dataclasses import replace

import pytest

from synth.costs import cut, uniform_costs
from synth.errors import SynthError
from synth.families import families, generate
from synth.kinds import OpKind
from synth.profile import Profile
from synth.profiles import find
from synth.schedule import Buffering, Timeline, peak_bytes, verify

# The papers' figures with F = B = W = 1: one column is one unit; X is BW, which takes two.
PICTURES = {
    # Huang et al. 2019: all forwards, then all backwards.
    ("gpipe", 4): """
        F0 F1 F2 F3 .. .. .. .. .. .. .. .. .. X0 -- X1 -- X2 -- X3 --
        .. F0 F1 F2 F3 .. .. .. .. .. .. X0 -- X1 -- X2 -- X3 -- .. ..
        .. .. F0 F1 F2 F3 .. .. .. X0 -- X1 -- X2 -- X3 -- .. .. .. ..
        .. .. .. F0 F1 F2 F3 X0 -- X1 -- X2 -- X3 -- .. .. .. .. .. ..
    """,
    # Narayanan et al. 2021: PipeDream-Flush.
    ("1f1b", 6): """
        F0 F1 F2 F3 .. .. .. .. .. .. X0 -- F4 X1 -- F5 X2 -- .. X3 -- .. X4 -- .. X5 --
        .. F0 F1 F2 .. .. .. .. X0 -- F3 X1 -- F4 X2 -- F5 X3 -- .. X4 -- .. X5 -- .. ..
        .. .. F0 F1 .. .. X0 -- F2 X1 -- F3 X2 -- F4 X3 -- F5 X4 -- .. X5 -- .. .. .. ..
        .. .. .. F0 X0 -- F1 X1 -- F2 X2 -- F3 X3 -- F4 X4 -- F5 X5 -- .. .. .. .. .. ..
    """,
    # Qi et al. 2023: handcrafted, 1F1B's memory.
    ("zb-h1", 8): """
        F0 F1 F2 F3 .. .. .. B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7
        .. F0 F1 F2 .. .. B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 B6 W5 B7 W6 W7
        .. .. F0 F1 .. B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 B7 W5 W6 W7
        .. .. .. F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7
    """,
    # Qi et al. 2023: handcrafted, a parallelogram without a bubble between a rank's ops.
    ("zb-h2", 8): """
        F0 F1 F2 F3 F4 F5 F6 B0 W0 F7 B1 W1 B2 W2 B3 W3 B4 W4 B5 W5 B6 W6 B7 W7 .. .. ..
        .. F0 F1 F2 F3 F4 B0 F5 B1 F6 B2 W0 F7 B3 W1 B4 W2 B5 W3 B6 W4 B7 W5 W6 W7 .. ..
        .. .. F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 W0 F7 B5 W1 B6 W2 B7 W3 W4 W5 W6 W7 ..
        .. .. .. F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 W0 F7 B7 W1 W2 W3 W4 W5 W6 W7
    """,
}


def picture(timeline: Timeline) -> list[str]:
    """Draw a timeline of unit ops."""
    lowered, rows = timeline.lowered, []
    for first, program in zip(lowered.first_node, lowered.ops, strict=False):
        row = [".."] * timeline.makespan_us
        for node, op in enumerate(program, first):
            start, end = timeline.start_us[node], timeline.end_us[node]
            letter = "X" if op.kind == OpKind.BW else op.kind.value
            row[start:end] = [f"{letter}{op.microbatch}", *["--"] * (end - start - 1)][
                : end - start
            ]
        rows.append(" ".join(row))
    return rows


@pytest.mark.parametrize(("name", "num_micro_batches"), PICTURES)
def test_a_family_looks_like_its_paper_s_figure(name: str, num_micro_batches: int) -> None:
    costs = uniform_costs(4, forward_us=1, backward_input_us=1, backward_weight_us=1)
    _, timeline = verify(generate(name, 4, num_micro_batches), costs)
    expected = PICTURES[name, num_micro_batches].split("\n")
    assert picture(timeline) == [line.strip() for line in expected if line.strip()]


# F, B, W with W ≤ F, B, the order of the paper's measurements, and 2W below and above F + B.
TIMES = [(55, 58, 35), (20, 18, 9), (10, 12, 9), (7, 7, 7)]
SIZES = [(2, 4), (4, 7), (4, 12), (8, 16), (8, 25)]


def bubble_us(name: str, p: int, m: int, times: tuple[int, int, int]) -> tuple[int, int]:
    """Makespan and period less the work."""
    forward, backward, weight = times
    costs = uniform_costs(
        p, forward_us=forward, backward_input_us=backward, backward_weight_us=weight
    )
    _, timeline = verify(generate(name, p, m), costs)
    work_us = m * sum(times)
    return timeline.makespan_us - work_us, timeline.period_us - work_us


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("times", TIMES)
def test_bubbles_follow_their_closed_forms(p: int, m: int, times: tuple[int, int, int]) -> None:
    f, b, w = times
    for name in ("gpipe", "1f1b"):
        assert bubble_us(name, p, m, times) == ((p - 1) * (f + b + w),) * 2
    assert bubble_us("zb-h1", p, m, times) == ((p - 1) * (f + b - w),) * 2


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 7), (4, 12), (8, 16), (8, 25)])
@pytest.mark.parametrize("times", TIMES)
def test_zb_h2_s_period_has_its_closed_form_from_2p_minus_1_micro_batches(
    p: int, m: int, times: tuple[int, int, int]
) -> None:
    f, b, w = times
    assert m >= 2 * p - 1
    assert bubble_us("zb-h2", p, m, times)[1] == (p - 1) * (f + b - 2 * w)


def held(name: str, p: int, m: int) -> tuple[int, ...]:
    """The most micro-batches that each rank holds, a micro-batch counting until its W."""
    costs = uniform_costs(
        p,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        saved_bytes=1,
        saved_w_bytes=1,
    )
    return peak_bytes(verify(generate(name, p, m), costs)[0])


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 3), (4, 12), (8, 16), (8, 5)])
def test_memory_follows_its_closed_forms(p: int, m: int) -> None:
    assert held("gpipe", p, m) == (m,) * p
    assert held("1f1b", p, m) == tuple(min(m, p - rank) for rank in range(p))
    assert held("zb-h1", p, m) == (min(m, p),) * p
    assert held("zb-h2", p, m) == (min(m, 2 * p - 1),) * p


# Qi et al. 2023 (ICLR), Table 5: bubble rates of the period, to four decimals.
@pytest.mark.parametrize(
    ("profile", "rates"),
    [
        ("zb-1.5b-p8-m24", (0.2431, 0.1585, 0.1083)),
        ("zb-1.5b-p8-m64", (0.1240, 0.0674, 0.0444)),
        ("zb-6.2b-p8-m24", (0.2347, 0.1323, 0.0698)),
        ("zb-14.6b-p16-m48", (0.2552, 0.1397, 0.0672)),
        ("zb-28.3b-p32-m96", (0.2646, 0.1421, 0.0641)),
    ],
)
def test_bubble_rates_are_the_published_ones(profile: str, rates: tuple[float, ...]) -> None:
    loaded = Profile.load(find(profile))
    p, m = (int(part[1:]) for part in profile.split("-")[2:])
    costs = cut(loaded, [len(loaded.layers) // p] * p)
    timelines = [verify(generate(name, p, m), costs)[1] for name in ("1f1b", "zb-h1", "zb-h2")]
    assert tuple(round(t.bubble_rate(t.period_us), 4) for t in timelines) == rates


@pytest.mark.parametrize("name", sorted(families()))
@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 5), (3, 1), (5, 4), (6, 13)])
def test_every_family_is_valid_for_any_size(name: str, p: int, m: int) -> None:
    costs = uniform_costs(p, forward_us=2, backward_input_us=3, backward_weight_us=1)
    verify(generate(name, p, m), costs)


@pytest.mark.parametrize("name", sorted(families()))
def test_every_family_names_its_paper(name: str) -> None:
    assert "arXiv" in families()[name].source


def test_an_unknown_family_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SynthError, match=r"family '2f2b' is unknown; known: 1f1b, gpipe, zb-h1"):
        generate("2f2b", 4, 8)


def test_no_ranks_or_no_micro_batches_are_refused() -> None:
    with pytest.raises(SynthError, match="at least one rank and one micro-batch, given 0 and 8"):
        generate("1f1b", 0, 8)


def test_with_one_op_of_send_behind_zb_h2_loses_time_to_senders_that_wait() -> None:
    # Why the default buffering is (1, 2): the published rate of this profile is .0444.
    profile = Profile.load(find("zb-1.5b-p8-m64"))
    costs = cut(profile, [3] * 8)
    tight = replace(generate("zb-h2", 8, 64), buffering=Buffering(1, 1))
    _, timeline = verify(tight, costs)
    assert round(timeline.bubble_rate(timeline.period_us), 4) == 0.0666
