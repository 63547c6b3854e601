"""Processes that are one rank run a whole step together, or none of them does."""

import pytest
import torch

from synth.profile.whole_step import WholeStep
from synth.profile.workload import Workload
from tests.runtime.gloo_pool import GlooPool

CPU = torch.device("cpu")


def check(rank: int, size: int, failing: str) -> tuple[str | None, str]:
    """Profile a Llama on a group; return the whole step and the last line that was told.

    Args:
        failing: a function of a whole step that fails on the last process; empty: none.
    """
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    from synth.runtime.profiling import whole_step
    from synth.runtime.profiling.profile_model import profile_model
    from synth.runtime.profiling.rank_processes import RankProcesses

    _clear_sharding_prop_cache()

    def fail(*_: object) -> None:
        raise RuntimeError("no memory here")

    workload = Workload.model_validate(
        {
            "model": "llama", "micro_batch_size": 2, "sequence_length": 8,
            "group": {"tensor": size},
            "arguments": {
                "vocabulary_size": 128, "width": 32, "num_blocks": 3, "num_heads": 4,
                "num_kv_heads": 2, "hidden_width": 64, "context_length": 16,
            },
        }
    )  # fmt: skip
    steps: list[WholeStep] = []
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        if failing and rank == size - 1:
            patch.setattr(whole_step, failing, fail)
        profile_model(
            workload,
            CPU,
            warmup=0,
            iterations=2,
            processes=RankProcesses.of_world(CPU, None),
            tell=told.append,
            on_whole_step=steps.append,
        )
    return (steps[0].model_dump_json() if steps else None), told[-1]


def test_all_processes_have_one_whole_step(pool: GlooPool) -> None:
    (first, _), (second, _) = pool.run(check, 2, "")
    assert first is not None and first == second
    step = WholeStep.model_validate_json(first)
    assert [peak.micro_batches for peak in step.peaks] == [1, 2, 4]


@pytest.mark.parametrize("failing", ["calls_of_own", "median"])
def test_a_failure_of_one_process_is_told_by_all(pool: GlooPool, failing: str) -> None:
    (first, of_first), (second, of_second) = pool.run(check, 2, failing, timeout=60)
    assert first is None and second is None
    why = "no whole step is compared with its parts, as it failed: "
    assert of_first == f"{why}process 1 failed: no memory here"
    assert of_second == f"{why}no memory here"
