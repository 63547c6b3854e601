"""A rank builds what the plan says, and refuses a model that has changed since."""

from pathlib import Path

import pytest
import torch

from synth.costs.partition_costs import partition_costs
from synth.errors import Mismatch, SynthError
from synth.families import generate
from synth.profile.workload import Workload
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.training.building import build_stages
from synth.schedule.files.plan_file import Plan

CPU = torch.device("cpu")
MODEL = """
from torch import nn
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear({width}, 64)
    def forward(self, x, targets):
        return nn.functional.cross_entropy(self.out(x).flatten(0, 1), targets.flatten())
def layers():
    blocks = [nn.Linear({width}, {width}) for _ in range({depth})]
    return [nn.Embedding(64, {width}), *blocks, Head()]
"""


def make_plan(file: Path) -> Plan:
    """1F1B on two ranks, of the model in a file."""
    workload = Workload(model=f"{file}:layers", micro_batch_size=1, sequence_length=4)
    profile = profile_model(workload, CPU, warmup=0, iterations=1)
    half = len(profile.layers) // 2
    return Plan.of(profile, [half, len(profile.layers) - half], generate("1f1b", 2, 2))


def test_ranks_build_the_same_model_whatever_the_partition(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL.format(width=8, depth=2))
    plan = make_plan(file)
    other = plan.replace(partition=(1, 3), costs=_costs_of(plan, (1, 3)))
    for p in (plan, other):
        built = (build_stages(p, rank, CPU, seed=3, model=f"{file}:layers") for rank in (0, 1))
        stages = {number: stage for b in built for number, stage in b.stages.items()}
        parameters = [q for s in sorted(stages) for q in stages[s].module.parameters()]
        if p is plan:
            first = parameters
    assert all(torch.equal(a, b) for a, b in zip(first, parameters, strict=True))


def _costs_of(plan: Plan, sizes: tuple[int, ...]) -> object:
    return partition_costs(profile_model(plan.workload, CPU, warmup=0, iterations=1), sizes)


@pytest.mark.parametrize(
    ("width", "depth", "message"),
    [(16, 2, "static bytes, the plan counts"), (8, 3, "it has 5 layers .* 4 were profiled")],
    ids=["wider", "deeper"],
)
def test_a_model_that_has_changed_since_is_refused(
    tmp_path: Path, width: int, depth: int, message: str
) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL.format(width=8, depth=2))
    changed = tmp_path / "changed.py"  # a process imports a file once, so take another
    changed.write_text(MODEL.format(width=width, depth=depth))
    plan = make_plan(file)
    with pytest.raises(Mismatch, match=message):
        build_stages(plan, 0, CPU, seed=0, model=f"{changed}:layers")


def test_a_model_that_only_the_plan_names_is_not_imported(tmp_path: Path) -> None:
    file, canary = tmp_path / "model.py", tmp_path / "canary"
    file.write_text(MODEL.format(width=8, depth=2))
    plan = make_plan(file)
    other = tmp_path / "other.py"
    other.write_text(f"open({str(canary)!r}, 'w')\n" + MODEL.format(width=8, depth=2))
    plan = plan.replace(workload=plan.workload.replace(model=f"{other}:layers"))
    with pytest.raises(SynthError, match="--trust to import what the plan names"):
        build_stages(plan, 0, CPU, seed=0)
    assert not canary.exists()
