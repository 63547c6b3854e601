"""Ranks that are rehearsed alone against the same ranks in a run of all."""

from pathlib import Path

import pytest
import torch

from synth.families import generate
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.profile.workload import Workload
from synth.run_options.train_options import TrainOptions
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.rehearsal import rehearse
from synth.schedule.files.plan_file import Plan
from tests.runtime.gloo_pool import GlooPool
from tests.runtime.train_plans import train_plans

CPU = torch.device("cpu")
TINY = {"vocabulary": 256, "time": 32, "width": 32, "heads": 2, "layers": 4}


@pytest.fixture(scope="module")
def profile() -> Profile:
    workload = Workload(model="gpt", arguments=TINY, micro_batch_size=2, sequence_length=32)
    links = Links(default=Link(latency_us=50.0), host=Link(bandwidth_bytes_per_s=1e9))
    return profile_model(workload, CPU, warmup=1, iterations=3, links=links)
