"""Published schedules: their papers' figures, closed forms and measured bubble rates."""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import synth.families
from synth.costs.costs import uniform_costs
from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import (
    current_name,
    families,
    family_placement,
    generate,
    generate_for,
)
from synth.families._lib.names import OTHER_NAMES
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.profiles import find
from synth.schedule.model import Buffering
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import verify
from tests.synth.family_variants import family_variants

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


NAMES = ("1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p")


# Qi et al. 2023 (ICLR), Table 5: bubble rates of the period, to four decimals, in this order.
@pytest.mark.parametrize(
    ("profile", "rates"),
    [
        ("zb-1.5b-p8-m24", (0.2431, 0.1585, 0.1083, 0.1585, 0.0433)),
        ("zb-1.5b-p8-m64", (0.1240, 0.0674, 0.0444, 0.0674, 0.0026)),
        ("zb-6.2b-p8-m24", (0.2347, 0.1323, 0.0698, 0.1323, 0.0029)),
        ("zb-14.6b-p16-m48", (0.2552, 0.1397, 0.0672, 0.1397, 0.0066)),
        ("zb-28.3b-p32-m96", (0.2646, 0.1421, 0.0641, 0.1421, 0.0038)),
    ],
)
def test_bubble_rates_are_the_published_ones(profile: str, rates: tuple[float, ...]) -> None:
    loaded = Profile.load(find(profile))
    p, m = (int(part[1:]) for part in profile.split("-")[2:])
    costs = partition_costs(loaded, [len(loaded.layers) // p] * p)
    timelines = [verify(generate(name, p, m, costs=costs), costs)[1] for name in NAMES]
    assert tuple(round(t.bubble_rate(t.period_us), 4) for t in timelines) == rates


@pytest.mark.parametrize(("p", "m"), [(4, 2), (6, 4), (8, 5), (8, 11), (8, 16)])
def test_the_greedy_is_as_short_as_the_handcrafted_with_few_micro_batches_too(
    p: int, m: int
) -> None:
    # Below 2p − 1 micro-batches the first ranks forward all of them before their first B.
    for times in ((1, 1, 1), (20, 18, 9)):
        assert bubble_us("zb-1p", p, m, times)[1] <= bubble_us("zb-h1", p, m, times)[1]
        assert bubble_us("zb-2p", p, m, times)[1] <= bubble_us("zb-h2", p, m, times)[1]


TO_HOST = Links(host=Link(latency_us=1))
costs_of_any = partial(uniform_costs, forward_us=2, backward_input_us=3, backward_weight_us=1)


# Numbers of ranks p and micro-batches m that a definition admits, if not all.
ADMITS: dict[str, Callable[[int, int], bool]] = {
    "weipipe": lambda p, m: m % p == 0,
    "weipipe:wzb1": lambda p, m: p % 2 == 0,
    "zero1": lambda p, m: m % p == 0,
    "zero2": lambda p, m: m % p == 0,
    "zero3": lambda p, m: m % p == 0,
    "tawpipe": lambda p, m: p % 2 == m % p == 0,
    "mobius": lambda p, m: m >= 2,
    "roundpipe": lambda p, m: p >= 2 and m % p == 0,
    "2bw": lambda p, m: m >= p,
    "paci": lambda p, m: m >= p - 1,
    "wpipe": lambda p, m: m >= p,
    "chimera": lambda p, m: p % 2 == 0,
    "bitpipe": lambda p, m: p % 2 == 0,
    "bitpipe-loop": lambda p, m: p % 2 == 0,
    "dualpipe": lambda p, m: p % 2 == m % 2 == 0 and m >= 2 * p,
    "dualpipe-v": lambda p, m: m >= 2 * p,
    "zb-limit": lambda p, m: False,  # here without caps
}


@given(
    name=st.sampled_from(
        [*families(), "interleaved:3", "breadth-first:4", "bitpipe:2", *family_variants()]
    ),
    p=st.integers(1, 8),
    m=st.integers(1, 17),
)
@settings(max_examples=300, deadline=None)
def test_every_family_is_valid_or_refused_for_any_size(name: str, p: int, m: int) -> None:
    rules = (ADMITS.get(each, lambda p, m: True) for each in {name, name.split(":")[0]})
    admitted = all(rule(p, m) for rule in rules)
    where = family_placement(name, p)
    costs = costs_of_any(where.num_stages, links=TO_HOST)
    if admitted:
        schedule = generate(name, p, m, costs=costs)
        assert schedule.placement == where
        verify(schedule, costs)
    else:
        with pytest.raises(SynthError, match=r"given (none|\d)"):
            generate(name, p, m, costs=costs)


@given(
    name=st.sampled_from(["linear", "looped:2", "looped:3", "v", "wave:2", "bidirectional"]),
    p=st.integers(1, 6),
    m=st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_all_families_of_a_placement_stand_on_exactly_it(name: str, p: int, m: int) -> None:
    where = placement(name, p)
    costs = costs_of_any(where.num_stages)
    found = dict(generate_for(where, m, costs))
    for schedule in found.values():
        assert schedule.placement == where
        verify(schedule, costs)
    if name == "linear":
        kept = {"gpipe", "1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p"}
        assert kept | {"gpipe:recompute", "1f1b:recompute", "bpipe"} <= set(found)
        assert "zb-limit" not in found  # no caps
    if name == "v":
        assert {"zb-v", "v-half", "v-min"} <= set(found)
    if name == "bidirectional":
        assert {"gems", "mixpipe"} <= set(found)
        assert ({"chimera", "chimera:doubling"} <= set(found)) == (p % 2 == 0)
        assert ("dualpipe" in found) == ADMITS["dualpipe"](p, m)


def test_a_file_in_the_folder_is_a_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "from synth.families._lib.family import Family\n"
        "from synth.families.zb_h1 import make\n"
        "from synth.families._lib.options import ChoiceOption\n"
        "options = (ChoiceOption('which', ('this', 'that')),)\n"
        "FAMILY = Family('mine', 'arXiv 0000.00000', make, options=options)\n"
    )
    (tmp_path / "of_my_own.py").write_text(text)
    monkeypatch.setattr(synth.families, "__path__", [*synth.families.__path__, str(tmp_path)])
    families.cache_clear()
    try:
        assert generate("mine:that", 2, 3).programs == generate("zb-h1", 2, 3).programs
        assert {"mine", "mine:that"} < set(family_variants())
        assert {"mine", "mine:that"} < {name for name, _ in generate_for(placement("linear", 2), 3)}
    finally:
        monkeypatch.undo()
        families.cache_clear()
        sys.modules.pop("synth.families.of_my_own")
    assert "mine" not in families()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("zero", "zero3:1"),
        ("zero:2", "zero3:2"),
        ("zero:1,ahead=0", "zero3:1,ahead=0"),
        ("zero:1,zero-3", "zero3:1"),
        ("zero:2,zero-2,ahead=3", "zero2:2"),
        ("zero:zero-1", "zero1:1"),
    ],
)
def test_families_of_earlier_versions_are_those_of_another_name(old: str, new: str) -> None:
    schedule = generate(old, 2, 4)
    assert schedule == generate(new, 2, 4)
    assert schedule.name == new
    assert family_placement(old, 2) == family_placement(new, 2)
    with pytest.raises(SynthError, match="is unknown"):
        generate("zero4:1", 2, 4)


def test_the_placement_of_all_stages_has_its_earlier_name_too() -> None:
    for suffix in ("", ":2"):
        assert placement(f"replicated{suffix}", 3) == placement(f"all-stages{suffix}", 3)
    assert placement("all-stages:2", 3).num_stages == 6
    assert set(placement("all-stages", 3).ranks) == {(rank,) * 3 for rank in range(3)}


def test_a_name_carries_the_number_of_rounds() -> None:
    assert generate("interleaved", 4, 8).name == "interleaved:2"
    assert generate("interleaved:3", 4, 8).placement == placement("looped:3", 4)
    assert generate("interleaved:3,group=5", 4, 8).name == "interleaved:3,group=5"
    assert generate("chimera:concatenation", 4, 8).name == "chimera"
    assert generate("bitpipe:early", 4, 8).name == "bitpipe:1,early"
    found = [name for name, _ in generate_for(placement("looped:3", 4), 8)]
    assert {"breadth-first:3", "interleaved:3", "pipeoffload:3", "pipeoffload:3,full"} <= set(found)
    assert all(name.split(":")[1].startswith("3") for name in found)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("interleaved:x", "interleaved takes a number of rounds from 2"),
        ("interleaved:", "family 'interleaved:' is not understood"),
        ("interleaved:rounds=2", "not understood"),
        ("interleaved:2,3", "has rounds twice"),
        ("interleaved:1", "the number of rounds is 1; interleaved needs 2 or more"),
        ("hanayo:0", "the number of rounds is 0; hanayo needs 1 or more"),
        ("breadth-first:2,block=0", "block is 0; breadth-first needs 1 or more"),
        ("chimera:tripling", "chimera takes concatenation or doubling or halving; eager"),
        ("chimera:doubling,doubling", "has scale twice"),
        ("zb-h1:2", "zb-h1 takes nothing after a colon"),
    ],
)
def test_a_name_that_is_not_understood_is_refused(name: str, message: str) -> None:
    with pytest.raises(SynthError, match=message):
        generate(name, 4, 8)


def test_costs_and_caps_must_be_of_the_placement() -> None:
    costs = costs_of_any(4)
    with pytest.raises(SynthError, match="the placement has 8 stages, the costs are of 4"):
        generate("zb-v", 4, 8, costs=costs)
    with pytest.raises(SynthError, match="1 caps for 4 ranks"):
        generate("zb-limit", 4, 8, costs=costs, caps_bytes=[5])
    with pytest.raises(SynthError, match="at least one micro-batch, given 0"):
        list(generate_for(placement("v", 4), 0))


@pytest.mark.parametrize("name", sorted(families()))
def test_every_family_names_its_paper(name: str) -> None:
    venues = r"(PPoPP|Interspeech|ICLR|ASPLOS) \d{4}"
    assert re.search(rf"arXiv \d{{4}}\.\d{{5}}|{venues}", families()[name].source)


def test_an_unknown_family_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        SynthError,
        match=r"family '2f2b' is unknown; known: 1f1b, 1f1b-vocab, 2bw, bitpipe, bitpipe-loop, ",
    ):
        generate("2f2b", 4, 8)


def test_no_ranks_or_no_micro_batches_are_refused() -> None:
    with pytest.raises(SynthError, match="at least one rank and one micro-batch, given 0 and 8"):
        generate("1f1b", 0, 8)


def test_with_one_op_of_send_behind_zb_h2_loses_time_to_senders_that_wait() -> None:
    # The default buffering is (1, 2) because the published rate of this profile is .0444.
    profile = Profile.load(find("zb-1.5b-p8-m64"))
    costs = partition_costs(profile, [3] * 8)
    tight = replace(generate("zb-h2", 8, 64), buffering=Buffering(1, 1))
    _, timeline = verify(tight, costs)
    assert round(timeline.bubble_rate(timeline.period_us), 4) == 0.0666


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("1F1B", "1f1b"),
        ("dapple", "1f1b"),
        ("PipeDream-Flush", "1f1b"),
        ("pipedream_flush", "1f1b"),
        ("ScheduleGPipe", "gpipe"),
        ("Interleaved1F1B:3,group=6", "interleaved:3,group=6"),
        ("LoopedBFS", "breadth-first"),
        ("ZBVZeroBubble", "zb-v"),
        ("DualPipeV", "dualpipe-v"),
        ("PipeDream-2BW", "2bw"),
        ("1f1b-int:3", "interleaved:3"),
        ("llama3:2,group=9", "interleaved:2,group=9"),
        ("weipipe-naive:ahead=2", "weipipe:naive,ahead=2"),
        ("zero:2,zero-2", "zero2:2"),
        ("unknown", "unknown"),
    ],
)
def test_families_have_the_names_of_papers_and_frameworks_in_any_case(name: str, here: str) -> None:
    assert current_name(name) == here
    if here != name:
        assert family_placement(name, 2) == family_placement(here, 2)


def test_the_page_lists_the_other_names_of_each_family() -> None:
    page = (Path(__file__).parents[3] / "docs" / "families.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([^`]+)` \| ((?:`[^`]+`(?:, )?)+) \|$", page, re.MULTILINE))
    listed = {name: family for family, row in rows.items() for name in re.findall("`(.+?)`", row)}
    assert listed == OTHER_NAMES


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_another_name_makes_the_schedule_of_its_family(name: str) -> None:
    assert generate(name, 4, 8) == generate(OTHER_NAMES[name], 4, 8)


def test_no_other_name_hides_a_family() -> None:
    assert [current_name(name) for name in families()] == list(families())
