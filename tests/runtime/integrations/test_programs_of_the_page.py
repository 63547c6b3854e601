"""The programs of the training page train a pipeline in other programs as shown."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from synth.families import generate
from synth.profile.workload import Workload
from synth.runtime.profiling.profile_model import profile_model
from synth.schedule.files.plan_file import Plan
from tests.docs.pages import blocks
from tests.runtime.pipeline.test_library_page import (
    LIBRARY,
    losses_in,
    program_with,
    run_as_rank,
)

PAGE = LIBRARY.with_name("training.md")


def program(name: str) -> str:
    """Return a file of the page."""
    return next(block.text for block in blocks(PAGE) if block.file == name)


def run_in_folder(rank: int, size: int, folder: str, text: str, variables: dict[str, str]) -> str:
    """Run a program in a folder, and return what it prints."""
    before = Path.cwd()
    os.chdir(folder)
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)} | variables
    os.environ |= own
    try:
        return run_as_rank(rank, size, text)
    finally:
        os.chdir(before)
        for name in own:
            del os.environ[name]


def test_the_lightning_program_learns_what_the_plain_loop_does(pool: Any, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    ours, _ = pool.run(run_in_folder, 2, str(tmp_path), program("train_lightning.py"), {})
    step = "    optimizer.step()"
    loop = program_with("init_process_group")
    clipped = loop.replace(step, f"    pipeline.clip_grad_norm_(1.0)\n{step}")
    assert clipped != loop
    plain = losses_in("".join(pool.run(run_as_rank, 2, clipped)))
    losses = losses_in(ours)
    assert len(losses) == 20
    assert losses == pytest.approx(plain, abs=6e-4)  # the loop prints three digits


def test_the_trainer_program_fine_tunes_the_folder_of_the_page(pool: Any, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    pool.run(run_in_folder, 1, str(tmp_path), program("tiny_llama.py"), {})
    workload = Workload(
        model=f"hf:{tmp_path / 'tiny-llama'}", micro_batch_size=2, sequence_length=32
    )
    profile = profile_model(workload, torch.device("cpu"), warmup=0, iterations=1)
    Plan.of(profile, [3, 3], generate("zb-h1", 2, 4)).save(tmp_path / "llama-plan.json")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    text = program("fine_tune.py") + RESET
    pool.run(run_in_folder, 2, str(tmp_path), text, address)
    assert (tmp_path / "tuned-by-trainer" / "config.json").exists()


RESET = """
from accelerate.state import AcceleratorState, GradientState, PartialState
for state in (AcceleratorState, GradientState, PartialState):
    state._reset_state()
"""
