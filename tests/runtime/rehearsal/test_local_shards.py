"""Tensor-parallel stages, rehearsed as local shards: the layers that one rank of a group has."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from synth.families import generate
from synth.profile.links import Link, Links
from synth.profile.workload import Workload
from synth.run_options.train_options import TrainOptions
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.rehearsal import rehearse
from synth.schedule.files.plan_file import Plan

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
WIDTH = 64
LINKS = Links(default=Link(latency_us=50.0))


class Shard(nn.Module):
    """The columns of the first matrix and the rows of the second one that one rank has.

    With `reduces` it adds up the outputs, if there are other ranks to add them up with.
    """

    def __init__(self, ranks: int, reduces: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH // ranks)
        self.down = nn.Linear(4 * WIDTH // ranks, WIDTH, bias=False)
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.reduces = reduces

    def forward(self, x: Tensor) -> Tensor:
        part = self.down(nn.functional.gelu(self.up(self.norm(x))))
        if self.reduces and dist.is_initialized():
            part = Summed.apply(part)
        return x + part + self.bias


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, part: Tensor) -> Tensor:
        whole = part.clone()
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


class Loss(nn.Module):
    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(x, targets)


def layers(ranks: int = 1, reduces: bool = False) -> list[nn.Module]:
    return [*(Shard(ranks, reduces) for _ in range(4)), Loss()]


def inputs(number: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(number)
    x, targets = torch.randn(2, 16, 8, WIDTH, generator=draw)
    return x, targets


def plan_of(**arguments: object) -> Plan:
    described = Workload(
        model=f"{__file__}:layers", inputs=f"{__file__}:inputs", arguments=arguments,
        micro_batch_size=16, sequence_length=8,
    )  # fmt: skip
    profile = profile_model(described, CPU, warmup=1, iterations=1, links=LINKS)
    return Plan.of(profile, (2, 3), generate("1f1b", 2, 4))


def peaks_of(plan: Plan) -> list[tuple[int, int]]:
    """The bytes of parameters, gradients and optimizer state, and the peak, rank by rank."""
    options = TrainOptions(steps=3, model=f"{__file__}:layers", inputs=f"{__file__}:inputs")
    found = rehearse(plan, plan.check()[0], options, CPU)
    return [(result.static_bytes, result.peak_bytes) for result in found.values()]


@pytest.mark.parametrize("reduces", [False, True], ids=["without", "with"])
def test_a_local_shard_takes_what_was_planned_for_it(reduces: bool) -> None:
    plan = plan_of(ranks=4, reduces=reduces)
    # Gloo's thread lets go of what it reduced a moment after the rank has gone on.
    late_bytes = inputs(0)[0].nbytes if reduces else 0
    for (static_bytes, peak_bytes), planned in zip(
        peaks_of(plan), plan.claim.peak_bytes, strict=True
    ):
        assert static_bytes < peak_bytes
        assert 0.9 * planned < peak_bytes <= planned + late_bytes


def test_a_shard_holds_its_share_of_the_matrices_and_whole_boundaries() -> None:
    whole, shard = plan_of(ranks=1), plan_of(ranks=4)
    # Of two blocks: 3/4 of the two matrices and of the bias between, each also as a gradient and as
    # two moments of AdamW.
    left_out = 2 * 3 * (2 * WIDTH * WIDTH + WIDTH)
    pairs = zip(peaks_of(whole), peaks_of(shard), strict=True)
    assert [a[0] - b[0] for a, b in pairs] == [left_out * 4 * 4] * 2
    assert whole.costs.stages[0].output_bytes == shard.costs.stages[0].output_bytes
