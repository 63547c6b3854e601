"""Tokens per second and MFU, against the closed forms of papers."""

import pytest

from synth.costs.partition_costs import partition_costs
from synth.families import generate
from synth.profile import Profile
from synth.profile.layer_times import LayerTimes
from synth.profile.throughput import Throughput, throughput
from synth.profiles import find
from synth.profiles.zero_bubble import ROWS, PublishedModel
from synth.schedule.verify import verify


def profile(forward_flops: int | None, peak: float | None = None) -> Profile:
    layer = LayerTimes(name="a", count=4, forward_us=1, backward_us=2, forward_flops=forward_flops)
    return Profile.from_times(
        "mine", [layer], micro_batch_size=2, sequence_length=5, peak_flops_per_s=peak
    )


def test_the_mfu_is_the_flops_over_time_ranks_and_peak() -> None:
    # Half an iteration per second of 6 micro-batches of 10 tokens and 3 · 4 · 1000 FLOPs.
    found = throughput(0.5, 6, 4, profile(1000, 36_000))
    assert (found.per_s, found.rank_flops_per_s, found.mfu) == (30, 9000, 0.25)
    assert found.words == "30 tokens/s, MFU 25.00 %"


@pytest.mark.parametrize(
    ("given", "words"),
    [(profile(None, 36_000), "30 tokens/s"), (profile(1000), "30 tokens/s, 9 kFLOP/s per rank")],
    ids=["no FLOPs", "no peak"],
)
def test_without_flops_or_a_peak_there_is_no_mfu(given: Profile, words: str) -> None:
    found = throughput(0.5, 6, 4, given)
    assert (found.mfu, found.words, found.mfu_cell()) == (None, words, "n/a")


def test_an_iteration_that_takes_no_time_has_no_throughput() -> None:
    assert throughput(None, 6, 4, profile(1000, 1.0)) == Throughput("tokens")
    assert Throughput("tokens").words == "" and Throughput("tokens").cell == "n/a"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_shipped_profiles_have_the_flops_that_the_megatron_paper_prints(
    row: PublishedModel,
) -> None:
    """96·B·s·l·h²·(1 + s/6h + V/16lh) with a second forward (Narayanan et al. 2021, equation 2).

    Without it, and without the head's V, that is three quarters of it.
    """
    s, h, batch = row.sequence_length, row.hidden_size, row.micro_batch_size
    printed = 72 * batch * s * row.num_blocks * h**2 * (1 + s / (6 * h))
    shipped = Profile.load(find(row.name))
    assert shipped.flops is not None
    assert shipped.flops.per_micro_batch == pytest.approx(printed, rel=1e-12)
    # One rank computes without any bubble; that is what the layers themselves reach.
    costs = partition_costs(shipped, [len(shipped.layers)])
    _, timeline = verify(generate("1f1b", 1, 4), costs)
    found = throughput(1e6 / timeline.makespan_us, 4, 1, shipped)
    stage_s = (row.forward_us + row.backward_input_us + row.backward_weight_us) / 1e6
    reached = printed / (row.num_ranks * stage_s) / 312e12
    assert found.mfu == pytest.approx(reached, rel=1e-4) and 0.3 < reached < 0.65
