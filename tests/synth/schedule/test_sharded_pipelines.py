"""Data-parallel pipelines with sharded state: memory, bytes and times against closed forms."""

import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.error import ScheduleError
from synth.schedule.lowering.collectives import CollectiveKind
from synth.schedule.lowering.lower import Lowered
from synth.schedule.model import Schedule
from synth.schedule.rank_memory import memory_usage, peak_bytes
from synth.schedule.sharded_pipelines import sharded_pipelines
from synth.schedule.simulate import Timeline
from synth.schedule.verify import verify
from synth.schedule.weight_flow import Sharded

PARAMETERS, GRADIENTS, OPTIMIZER = 100, 60, 260


def costs(num_stages: int, links: Links | None = None, step_us: int = 0) -> Costs:
    made = uniform_costs(
        num_stages,
        forward_us=10,
        backward_input_us=11,
        backward_weight_us=9,
        saved_bytes=7,
        saved_w_bytes=3,
        output_bytes=2,
        parameter_bytes=PARAMETERS,
        gradient_bytes=GRADIENTS,
        static_bytes=PARAMETERS + GRADIENTS + OPTIMIZER,
        links=links,
    )
    stages = [s.replace(duration_us={**s.duration_us, OpKind.STEP: step_us}) for s in made.stages]
    return made.replace(stages=tuple(stages))


def verified(schedule: Schedule, links: Links | None = None) -> tuple[Lowered, Timeline]:
    return verify(schedule, costs(schedule.placement.num_stages, links))


def peaks_of(schedule: Schedule) -> tuple[int, ...]:
    return peak_bytes(verified(schedule)[0])


@pytest.mark.parametrize("num_pipelines", [2, 3, 4])
@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "interleaved:2", "v-min", "1f1b:recompute"])
def test_zero_1_saves_the_optimizer_state_of_the_other_ranks_and_no_more(
    name: str, num_pipelines: int
) -> None:
    one = generate(name, 2, 4)
    plain = peaks_of(one)
    stages_per_rank = one.placement.num_stages // 2
    saved = stages_per_rank * (OPTIMIZER - -(-OPTIMIZER // num_pipelines))
    found = peaks_of(sharded_pipelines(one, num_pipelines))
    assert found == tuple(peak - saved for peak in plain) * num_pipelines
    lowered, _ = verified(sharded_pipelines(one, num_pipelines))
    ranks = range(lowered.num_ranks)
    assert found == tuple(memory_usage(lowered, rank).peak_bytes for rank in ranks)


@pytest.mark.parametrize("m", [1, 2, 3, 6, 13])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("n", [2, 3])
def test_a_rank_with_one_stage_holds_its_weights_and_the_gradients_on_their_way(
    n: int, p: int, m: int
) -> None:
    # Its weights and gradient are whole while BW runs, and there is the share of them besides.
    known = uniform_costs(
        p,
        forward_us=10,
        backward_input_us=11,
        backward_weight_us=9,
        parameter_bytes=PARAMETERS,
        gradient_bytes=GRADIENTS,
        static_bytes=PARAMETERS + GRADIENTS + OPTIMIZER,
    )
    one = generate("1f1b", p, m)
    # Sends of two ops back are still under way: of as many BW's in a row at the end, on rank 0.
    gradients = min(m, max(2, min(p, 1 + one.buffering.send_behind)))
    kept = {
        Sharded.OPTIMIZER: PARAMETERS + GRADIENTS + -(-OPTIMIZER // n),
        Sharded.GRADIENTS: PARAMETERS + gradients * GRADIENTS + -(-(GRADIENTS + OPTIMIZER) // n),
        Sharded.WEIGHTS: PARAMETERS + GRADIENTS + -(-(PARAMETERS + GRADIENTS + OPTIMIZER) // n),
    }
    for level, most in kept.items():
        lowered, _ = verify(sharded_pipelines(one, n, level), known)
        assert max(peak_bytes(lowered)) == most, level


def test_zero_3_frees_the_stages_that_a_rank_is_not_at() -> None:
    # Of six stages on a rank it holds the one that runs, the next one, and two sums of gradients.
    one = generate("interleaved:6", 2, 4)
    whole = 6 * (PARAMETERS + GRADIENTS + OPTIMIZER)
    activations = [peak - whole for peak in peaks_of(one)]
    found = peaks_of(sharded_pipelines(one, 4, Sharded.WEIGHTS))
    kept = 6 * (PARAMETERS + GRADIENTS + OPTIMIZER) // 4 + 2 * (PARAMETERS + GRADIENTS)
    assert all(p <= kept + rest for p, rest in zip(found, activations * 4, strict=True))
    assert max(found) < min(peaks_of(sharded_pipelines(one, 4)))


def test_each_stage_is_gathered_and_scattered_once() -> None:
    lowered, _ = verified(sharded_pipelines(generate("zb-h1", 3, 5), 4))
    by_kind = {kind: [c for c in lowered.collectives if c.kind == kind] for kind in CollectiveKind}
    assert not by_kind[CollectiveKind.ALL_REDUCE]
    for kind, num_bytes in ((CollectiveKind.GATHER, PARAMETERS), (CollectiveKind.SCATTER, 60)):
        found = by_kind[kind]
        assert [c.ranks for c in found] == [(s, s + 3, s + 6, s + 9) for s in (0, 1, 2)]
        assert [c.sent_bytes for c in found] == [3 * num_bytes] * 3


def test_the_last_stage_waits_for_its_gather_and_its_step_for_the_scatter() -> None:
    # One stage on each of two ranks, one micro-batch: gather 100 / 2 bytes at 1 byte/µs; F, BW;
    # scatter 60 / 2; half of a STEP of 8.
    one = generate("1f1b", 1, 1)
    links = Links(default=Link(latency_us=5, bandwidth_bytes_per_s=1e6))
    known = costs(1, links, step_us=8)
    _, timeline = verify(sharded_pipelines(one, 2), known)
    assert timeline.makespan_us == (5 + 50) + 10 + 20 + (5 + 30) + 4


@pytest.mark.parametrize(
    ("name", "num_pipelines", "said"),
    [
        ("1f1b", 1, "give at least 2, given 1"),
        ("1f1b", 1001, "1000 data-parallel pipelines at most, given 1001"),
        ("chimera", 2, "has several copies of its stages"),
        ("zero3:1", 2, "has several copies of its stages"),
        ("pipedream", 2, "updates weights between its ops"),
    ],
)
def test_what_cannot_be_sharded_is_refused(name: str, num_pipelines: int, said: str) -> None:
    with pytest.raises(ScheduleError, match=said):
        sharded_pipelines(generate(name, 2, 4), num_pipelines)


def test_a_schedule_that_passes_weights_already_is_refused() -> None:
    once = sharded_pipelines(generate("1f1b", 2, 4), 2)
    with pytest.raises(ScheduleError, match="copies of its stages"):
        sharded_pipelines(once, 2)


# Blocks of micro-batches: breadth-first with FSDP, and ZeroPP's blockwise order


@pytest.mark.parametrize(("rounds", "count", "block"), [(2, 8, 0), (2, 8, 4), (3, 8, 2), (2, 6, 4)])
@pytest.mark.parametrize("num_pipelines", [2, 4])
def test_breadth_first_gathers_and_reduces_a_stage_once_for_each_block(
    rounds: int, count: int, block: int, num_pipelines: int
) -> None:
    num_ranks, n = 4, num_pipelines
    name = f"breadth-first:{rounds}" + (f",block={block}" if block else "")
    schedule = sharded_pipelines(generate(name, num_ranks, count), n, Sharded.WEIGHTS)
    lowered = verify(schedule, costs(num_ranks * rounds))[0]
    blocks = -(-count // block) if block else 1
    # A rank's last round runs forward and backward in a row, and so does its first round from one
    # block to the next; each other round is gathered for both.
    gathers = blocks * (2 * rounds - 2) + 1
    sent = {
        kind: sum(one.sent_bytes for one in lowered.collectives if one.kind == kind)
        for kind in ("all-gather", "reduce-scatter")
    }
    assert sent["all-gather"] == num_ranks * gathers * (n - 1) * PARAMETERS
    assert sent["reduce-scatter"] == num_ranks * blocks * rounds * (n - 1) * GRADIENTS


def test_one_after_another_a_stage_is_gathered_for_each_micro_batch() -> None:
    # Blocks of one micro-batch, the most that any order needs.
    rounds, count, n = 2, 6, 2
    each = sharded_pipelines(generate("breadth-first:2,block=1", 4, count), n, Sharded.WEIGHTS)
    lowered = verify(each, costs(4 * rounds))[0]
    gathered = [one for one in lowered.collectives if one.kind == "all-gather"]
    assert len(gathered) == 4 * (count * (2 * rounds - 2) + 1)
    # FSDP without a pipeline gathers each stage of all ranks twice, and the last one once.
    alone = generate("zero3:2", 4, 4 * count).programs[0]
    visits = sum(op.kind == OpKind.UNSHARD for op in alone)
    assert visits == count * (2 * 4 * rounds - 1)
    assert len(gathered) > visits / 2


def test_a_level_may_be_given_as_a_word_and_an_unknown_one_is_refused() -> None:
    pipeline = generate("1f1b", 2, 2)
    by_word = sharded_pipelines(pipeline, 2, "gradients")  # type: ignore[arg-type]
    assert by_word == sharded_pipelines(pipeline, 2, Sharded.GRADIENTS)
    costs = uniform_costs(2, forward_us=5, backward_input_us=7, backward_weight_us=3)
    assert verify(by_word, costs)[1].makespan_us > 0
    with pytest.raises(ScheduleError, match="one of optimizer, gradients, weights"):
        sharded_pipelines(pipeline, 2, "everything")  # type: ignore[arg-type]
