"""Training of plans on one rank, for tests that compare results with what was planned."""

from pathlib import Path

import torch

from synth.run_options.train_options import TrainOptions
from synth.runtime.rank_result import RankResult
from synth.runtime.training.trainer import RankTrainer
from synth.runtime.world import World
from synth.schedule.files.plan_file import Plan

CPU = torch.device("cpu")


def train_plans(rank: int, world_size: int, plans: list[str], data: Path) -> list[RankResult]:
    """Train each plan (JSON) for three steps."""
    found = []
    for text in plans:
        plan = Plan.from_json(text)
        world = World(rank, world_size, CPU, "gloo", "here", 2)
        options = TrainOptions(data=data, steps=3)
        found.append(RankTrainer(plan, plan.check()[0], options, world).train())
    return found
