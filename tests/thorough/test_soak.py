"""Random schedules replayed for as long as is given, and a long run that does not grow."""

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from synth.schedule.model import Schedule
from synth.schedule.verify import ScheduleError, verify
from tests.cli.worker_processes import workers_of
from tests.runtime.execution.test_random_schedules import plain_autograd, replay
from tests.runtime.random_orders import random_order
from tests.synth.plain import random_costs, random_schedule
from tests.thorough.examples import Examples
from tests.thorough.processes import Started, started

# Schedules that are replayed one after the other, in one go of the processes.
BATCH = 12


def valid_schedules(draw: random.Random, num_ranks: int) -> list[tuple[int, Schedule]]:
    """Schedules that pass the verifier, each with a seed for its weights."""
    found: list[tuple[int, Schedule]] = []
    while len(found) < BATCH:
        if draw.random() < 0.7:
            schedule = random_schedule(draw)
        else:
            schedule = random_order(num_ranks, draw.randint(1, 5), draw.getrandbits(32))
        if schedule.num_ranks != num_ranks:
            continue
        try:
            verify(schedule, random_costs(draw, schedule.placement.num_stages, num_ranks))
        except ScheduleError as error:
            assert "deadlock" in str(error)
            continue
        found.append((draw.randrange(10**6), schedule))
    return found


@pytest.mark.thorough(share=0.12)
def test_random_schedules_give_autograds_gradients_for_as_long_as_is_given(
    pool: Any, examples: Examples
) -> None:
    def check(draw: random.Random) -> None:
        num_ranks = draw.choice((1, 2, 2, 3, 4))
        schedules = valid_schedules(draw, num_ranks)
        by_rank = pool.run(replay, num_ranks, schedules, timeout=120)
        for index, (seed, schedule) in enumerate(schedules):
            wanted = plain_autograd(schedule, seed)
            for rank in by_rank:
                gradients, held = rank[index]
                assert held == 0, schedule
                for stage, mine in gradients.items():
                    for found, true in zip(mine, wanted[stage], strict=True):
                        torch.testing.assert_close(found, true, msg=f"{schedule}, stage {stage}")

    examples.each(check)


STEPS = 2000
# Allocators keep what they once had; a leak of 1 kB a step is more.
SLACK_BYTES = 1 << 20


@dataclass(frozen=True)
class Footprint:
    """The resources of a process."""

    resident_bytes: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, process: int) -> "Footprint":
        folder = Path(f"/proc/{process}")
        lines = (folder / "status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return cls(
            int(fields["VmRSS"].split()[0]) * 1024,
            len(list((folder / "fd").iterdir())),
            int(fields["Threads"]),
        )


@pytest.mark.thorough(share=0.14)
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="footprints are read from /proc")
def test_a_long_run_takes_no_more_after_its_first_tenth(
    run_plan: Path, text: Path, examples: Examples, tmp_path: Path
) -> None:
    def check(draw: random.Random) -> None:
        folder = tmp_path / str(draw.getrandbits(64))
        folder.mkdir()
        training = ("run", run_plan, "--data", text, "--device", "cpu", "--steps", STEPS)
        saving = ("--checkpoint", folder / "saved", "--checkpoint-every", 20)
        seed = ("--seed", draw.randrange(1000))
        with started((*training, *saving, *seed), folder) as run:
            by_rank = watch(run, examples.left_s)
            run.process.terminate()
            run.process.wait(timeout=120)
            assert "Traceback" not in run.stderr
        for rank, seen in enumerate(by_rank):
            check_level(rank, seen)

    examples.each(check)


def watch(run: Started, seconds: float) -> list[list[Footprint]]:
    """The footprints of every rank at equal times, from the first step to the end of the time."""
    until = time.monotonic() + seconds
    while "checkpoint of step" not in run.stderr:
        assert run.process.poll() is None, run.stderr
        time.sleep(0.05)
    workers = workers_of(run.process.pid)
    seen: list[list[Footprint]] = [[] for _ in workers]
    while (time.monotonic() < until or len(seen[0]) < 30) and run.process.poll() is None:
        try:
            found = [Footprint.of(worker) for worker in workers]
        except (OSError, KeyError):  # it ends
            break
        for rank, footprint in enumerate(found):
            seen[rank].append(footprint)
        time.sleep(0.1)
    return seen


def check_level(rank: int, seen: list[Footprint]) -> None:
    """Nothing grows after the first tenth; the end of a run, when it takes leave, is left out."""
    seen = seen[:-5]
    tenth = len(seen) // 10
    assert tenth, f"only {len(seen)} looks at rank {rank}"
    first, later = seen[:tenth], seen[tenth:]
    told = f"rank {rank}: {seen[0]}, {seen[tenth]}, {seen[-1]}"
    for name in ("descriptors", "threads"):
        most = max(getattr(footprint, name) for footprint in first)
        assert max(getattr(footprint, name) for footprint in later) <= most + 1, (name, told)
    grown_bytes = seen[-1].resident_bytes - max(f.resident_bytes for f in first)
    assert grown_bytes <= SLACK_BYTES, told
