"""Published schedules whose weights move, as candidates of `--weights auto`."""

from functools import cache

import pytest

import synth
from synth.families import families
from synth.families._lib.options import parse
from synth.plan.compare import compare
from synth.plan.comparison import Question
from synth.plan.weight_passing.moving_families import moving_families
from synth.profile import Profile
from synth.profile.links import Link
from synth.profiles import find
from synth.solver.options import SolveOptions

RANKS, MICRO_BATCHES = 2, 4


@cache
def profile() -> Profile:
    """A small model on ranks with a link to the host's memory."""
    alone = Profile.load(find("gpt-bytes-cpu"))
    host = Link(latency_us=10, bandwidth_bytes_per_s=1e9)
    return alone.replace(links=alone.links.replace(host=host))


def shown(cap_bytes: int) -> list[tuple[int, int, str]]:
    """The time, the peak and the name of what a comparison shows of families that move weights."""
    question = Question(profile(), RANKS, MICRO_BATCHES, (cap_bytes,) * RANKS)
    names = [name for name in moving_families(RANKS, len(profile().layers)) if "ahead" not in name]
    found = compare(question, names, options=SolveOptions(time_limit_s=60, workers=1)).entries
    return [(one.makespan_us, max(one.peak_bytes), one.name) for one in found]


def auto(cap_bytes: int, time_limit: str) -> synth.Plan:
    """Solve with every place of weights."""
    return synth.solve(
        profile(),
        ranks=RANKS,
        micro_batches=MICRO_BATCHES,
        weights="auto",
        mem_limit=f"{cap_bytes}B",
        time_limit=time_limit,
        workers=1,
    )


def test_every_name_is_a_family_whose_weights_move() -> None:
    names = moving_families(4, 16)
    assert {"roundpipe:2", "roundpipe:4,ahead=0", "mobius:3", "tawpipe:nodes=4"} < {*names}
    for name in names:
        family = families()[name.partition(":")[0]]
        parse(family.name, family.options, name.partition(":")[2] or None)
        assert family.weights is not None, name
    # The number of layers limits that of stages.
    assert not any(name.startswith("roundpipe:4") for name in moving_families(4, 15))


@pytest.mark.slow
def test_auto_finds_what_a_comparison_shows_where_no_search_has_a_schedule() -> None:
    least = min(peak for _, peak, _ in shown(1))
    cap_bytes = least + least // 4
    fitting = [us for us, peak, _ in shown(cap_bytes) if peak <= cap_bytes]
    plan = auto(cap_bytes, "10s")
    assert plan.claim.makespan_us <= min(fitting)
    assert max(plan.claim.peak_bytes) <= cap_bytes
    assert plan.claim.lower_bound_us <= plan.claim.makespan_us


@pytest.mark.slow
def test_the_error_names_the_least_limit_of_all_candidates() -> None:
    least = min(peak for _, peak, _ in shown(1))
    with pytest.raises(synth.SynthError, match="roundpipe") as error:
        auto(least // 2, "5s")
    named = int(str(error.value).split("mem_limit ")[1].split("B")[0].strip("='\""))
    assert named <= least
