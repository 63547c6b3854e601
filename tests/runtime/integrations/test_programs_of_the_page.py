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


def run_in_folder(
    rank: int, size: int, folder: str, text: str, variables: dict[str, str], *words: str
) -> str:
    """Run a program in a folder, and return what it prints."""
    before = Path.cwd()
    os.chdir(folder)
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)} | variables
    os.environ |= own
    try:
        return run_as_rank(rank, size, text, *words)
    finally:
        os.chdir(before)
        for name in own:
            del os.environ[name]


@pytest.mark.slow
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


@pytest.fixture
def folder(pool: Any, tmp_path: Path) -> Path:
    """The folder of the page's model, its plan and its text."""
    pytest.importorskip("transformers")
    pool.run(run_in_folder, 1, str(tmp_path), program("tiny_llama.py"), {})
    workload = Workload(
        model=f"hf:{tmp_path / 'tiny-llama'}", micro_batch_size=2, sequence_length=32
    )
    profile = profile_model(workload, torch.device("cpu"), warmup=0, iterations=1)
    Plan.of(profile, [3, 3], generate("zb-h1", 2, 4)).save(tmp_path / "llama-plan.json")
    return tmp_path


def test_the_trainer_program_fine_tunes_the_folder_of_the_page(pool: Any, folder: Path) -> None:
    pytest.importorskip("accelerate")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    text = program("fine_tune.py") + RESET
    pool.run(run_in_folder, 2, str(folder), text, address)
    assert (folder / "tuned-by-trainer" / "config.json").exists()


@pytest.mark.slow
def test_the_loops_of_the_page_learn_the_same_plain_and_sharded(pool: Any, folder: Path) -> None:
    from transformers import LlamaForCausalLM

    text = program("train_sharded.py")
    plain, sharded = (
        losses_in("".join(pool.run(run_in_folder, 4, str(folder), text, {}, *words)))
        for words in ((), ("fsdp",))
    )
    assert len(plain) == 40 and sum(plain[-4:]) < 0.9 * sum(plain[:4])
    assert sharded == pytest.approx(plain, abs=2e-3)
    models = [LlamaForCausalLM.from_pretrained(folder / f"tuned-{x}") for x in ("plain", "sharded")]
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)


RESET = """
from accelerate.state import AcceleratorState, GradientState, PartialState
for state in (AcceleratorState, GradientState, PartialState):
    state._reset_state()
"""
