"""Ranks that are rehearsed alone against the same ranks in a run of all."""

import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import synth
from synth.errors import SynthError
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.layer_times import LayerTimes
from synth.profile.links import Link, Links
from synth.profile.workload import Workload
from synth.report.explain.rehearsal import RehearsedRank, rehearsed_run
from synth.report.explain.run_against_plan import compare
from synth.run_options.train_options import TrainOptions
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.rank_result import RankResult
from synth.runtime.rehearsal import device_memory, rehearse
from synth.schedule.files.plan_file import Plan
from synth.schedule.measured.execution_trace import OpSpan, planned_spans
from tests.runtime.train_plans import train_plans

CPU = torch.device("cpu")
TINY = {
    "vocabulary_size": 256,
    "width": 32,
    "num_blocks": 6,
    "num_heads": 2,
    "context_length": 16,
}


@cache
def profiled(**workload: Any) -> Profile:
    described = Workload(
        model="gpt", arguments=TINY, micro_batch_size=2, sequence_length=16, **workload
    )
    links = Links(default=Link(latency_us=50.0), host=Link(bandwidth_bytes_per_s=1e9))
    return profile_model(described, CPU, warmup=1, iterations=1, links=links)


def plan_of(name: str, num_ranks: int, **workload: Any) -> Plan:
    profile, schedule = profiled(**workload), generate(name, num_ranks, 4)
    count, more = divmod(len(profile.layers), schedule.placement.num_stages)
    sizes = [count + (stage < more) for stage in range(schedule.placement.num_stages)]
    return Plan.of(profile, sizes, schedule)


def rehearsed(plan: Plan, *, steps: int = 3, **options: Any) -> dict[int, RankResult]:
    training = TrainOptions(steps=steps)
    return rehearse(plan, plan.check()[0], training, CPU, **options)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_ranks", "names", "workload"),
    [
        (2, ("1f1b", "zb-v", "chimera", "pipedream", "weipipe", "zero3"), {}),
        (4, ("zb-h1", "zb-v", "bpipe"), {}),
        (4, ("bpipe",), {"autocast": "bfloat16"}),
    ],
    ids=["two ranks", "four ranks", "autocast"],
)
def test_memory_is_that_of_a_run(
    pool: Any, text: Path, num_ranks: int, names: tuple[str, ...], workload: dict[str, Any]
) -> None:
    plans = [plan_of(name, num_ranks, **workload) for name in names]
    by_rank = pool.run(train_plans, num_ranks, [plan.to_json() for plan in plans], text)
    for plan, *run in zip(plans, *by_rank, strict=True):
        found = rehearsed(plan)
        assert list(found) == list(range(num_ranks))
        for alone, beside in zip(found.values(), run, strict=True):
            assert alone.static_bytes == beside.static_bytes, plan.name
            assert alone.peak_bytes == pytest.approx(beside.peak_bytes, rel=0.005), plan.name


@pytest.mark.slow
@pytest.mark.parametrize(
    "workload",
    [
        {"autocast": "bfloat16"},
        {"recomputed_layers": ("block.1", "block.4")},
        {"dtype": "bfloat16"},
    ],
    ids=["autocast", "recomputed", "bfloat16"],
)
def test_memory_is_as_planned_in_any_precision(workload: dict[str, Any]) -> None:
    plan = plan_of("1f1b", 2, **workload)
    near = 0.8 if "autocast" in workload else 0.97
    for found, planned in zip(rehearsed(plan).values(), plan.claim.peak_bytes, strict=True):
        assert near * planned < found.peak_bytes <= planned


def test_a_rank_is_rehearsed_without_the_data_of_others() -> None:
    """Of eight ranks of a model too large for eight copies of it, one is built."""
    plan = plan_of("1f1b", 8)
    seen: list[int] = []
    found = rehearsed(plan, ranks=[5], on_rank=seen.append)
    assert seen == list(found) == [5]
    kinds = {span.op.kind for step in found[5].traced for span in step.log.ops}
    assert kinds == {OpKind.F, OpKind.BW, OpKind.STEP}


@pytest.mark.slow
def test_the_iteration_is_simulated_with_the_measured_times() -> None:
    plan = plan_of("1f1b", 2)
    lowered = plan.check()[0]
    results = rehearsed(plan, steps=4)
    ranks = {
        rank: RehearsedRank([seen.log.ops for seen in result.traced], result.peak_bytes)
        for rank, result in results.items()
    }
    found = compare(plan, lowered, rehearsed_run(plan, lowered, ranks))
    medians = {(op.stage, op.kind): op.measured_us for op in found.ops}
    slower = [2 * medians[stage, OpKind.F] + 2 * medians[stage, OpKind.BW] for stage in (0, 1)]
    assert found.measured_us >= 2 * max(slower)  # four micro-batches on the slower rank
    assert found.predicted_peak_bytes == plan.claim.peak_bytes
    assert found.measured_peak_bytes == tuple(result.peak_bytes for result in results.values())
    assert {op.n for op in found.ops if op.kind == OpKind.F} == {8}  # two timed steps of four


def test_ranks_that_were_not_rehearsed_keep_their_planned_times() -> None:
    plan = plan_of("1f1b", 2)
    lowered = plan.check()[0]
    nothing = compare(plan, lowered, rehearsed_run(plan, lowered, {}))
    assert nothing.measured_us == nothing.predicted_us
    assert nothing.measured_peak_bytes == (None, None)


@pytest.mark.parametrize("slower", [1, 3])
def test_what_pairs_hide_is_as_rehearsed(slower: int) -> None:
    block = LayerTimes(name="block", count=8, forward_us=1000, backward_us=2000, pair_us=2200)
    profile = Profile.from_times("moe", [block])
    plan = synth.simulate("dualpipe-v:overlap", profile, ranks=2, micro_batches=6)
    lowered, line = plan.check()
    spans = [
        [OpSpan(op, slower * start_us, slower * end_us) for op, start_us, end_us in rank]
        for rank in planned_spans(line)
    ]
    ranks = {rank: RehearsedRank([ops], 0) for rank, ops in enumerate(spans)}
    found = compare(plan, lowered, rehearsed_run(plan, lowered, ranks))
    assert found.measured_us == slower * found.predicted_us


def test_a_rank_that_does_not_fit_is_refused_with_the_bytes_that_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of("1f1b", 2)
    low, high = sorted(plan.claim.peak_bytes)
    rank = plan.claim.peak_bytes.index(high)
    monkeypatch.setattr(device_memory, "available_bytes", lambda device: (low + high) // 2)
    with pytest.raises(SynthError, match=rf"^rank {rank} needs .* by the plan, and cpu has .*"):
        rehearsed(plan)
    assert list(rehearsed(plan, ranks=[1 - rank])) == [1 - rank]


class Branching(nn.Module):
    """Gives rows by a mask and by a value, which only data tells."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.out(x[torch.ones(len(x), dtype=torch.bool)])
        return (y if float(y.detach().sum()) < 1e9 else y + 1), torch.ones(len(y), dtype=torch.bool)


class Ending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 1)

    def forward(self, x: Tensor, mask: Tensor, targets: Tensor) -> Tensor:
        assert mask.all(), "a mask of nothing"
        return ((self.out(x)[mask] - targets) ** 2).mean()


def branching_layers() -> list[nn.Module]:
    return [Branching(), Ending()]


def branching_inputs(number: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(number)
    return torch.randn(4, 8, generator=draw), torch.randn(4, 1, generator=draw)


def test_a_model_that_branches_on_values_and_passes_a_mask_is_rehearsed() -> None:
    here = f"{__file__}:"
    described = Workload(
        model=here + "branching_layers", inputs=here + "branching_inputs", micro_batch_size=4,
        sequence_length=1,
    )  # fmt: skip
    links = Links(default=Link(latency_us=50.0))
    profile = profile_model(described, CPU, warmup=1, iterations=1, links=links)
    plan = Plan.of(profile, (1, 1), generate("1f1b", 2, 4))
    options = TrainOptions(
        steps=3, model=here + "branching_layers", inputs=here + "branching_inputs"
    )
    found = rehearse(plan, plan.check()[0], options, CPU)
    assert found[1].losses[-1] > 0
    assert all(result.peak_bytes > result.static_bytes for result in found.values())


def test_what_cannot_be_rehearsed_is_refused() -> None:
    with pytest.raises(SynthError, match="rank 2 was asked for, the plan has ranks 0 to 1"):
        rehearsed(plan_of("1f1b", 2), ranks=[2])
    with pytest.raises(SynthError, match="leave values for each other in the host's memory"):
        rehearsed(plan_of("roundpipe", 2))


def test_an_error_of_a_layer_ends_the_rehearsal_at_once(
    monkeypatch: pytest.MonkeyPatch, text: Path
) -> None:
    from synth.runtime.models.gpt import GptBlock

    monkeypatch.setattr(GptBlock, "forward", lambda block, x: x.reshape(-1, 7))
    began = time.monotonic()
    with pytest.raises(SynthError, match=r"reshape|shape"):
        rehearsed(plan_of("1f1b", 2))
    assert time.monotonic() - began < 60
