"""The time without a processor, on counters that the tests write."""

import os
from pathlib import Path

import pytest

from synth.system.processor_waits import ProcessorTimes, ProcessorWatch, lost_s

ME, CHILD = os.getpid(), 4_000_000
NS, TICKS = 10**9, os.sysconf("SC_CLK_TCK")


def write_process(proc: Path, pid: int, ran_s: int, waited_s: int, children: str = "") -> None:
    """Write what the kernel counts of a process with one thread."""
    task = proc / str(pid) / "task" / str(pid)
    task.mkdir(parents=True, exist_ok=True)
    ticks = f"{ran_s * TICKS - 1} 1" if ran_s else "0 0"
    (proc / str(pid) / "stat").write_text(f"{pid} (a) b) R {'7 ' * 10}{ticks} 9 9")
    (task / "schedstat").write_text(f"{ran_s * NS} {waited_s * NS} 5\n")
    (task / "children").write_text(children)


def write_busy(proc: Path, busy_s: int) -> None:
    """Let all processors have been busy for some seconds together."""
    first, *others = sorted(os.sched_getaffinity(0))
    lines = [f"cpu{first} {busy_s * TICKS} 0 0 77 88 0 0 0 0 0"]
    lines += [f"cpu{number} 0 0 0 5 5 0 0 0 0 0" for number in others]
    proc.mkdir(exist_ok=True)
    (proc / "stat").write_text("\n".join(["cpu 1 2 3 4 5", *lines, "intr 5"]))


@pytest.mark.parametrize(
    ("busy_s", "share"),
    # 4 s ran, 6 s waited; others had the processors for 16, 4 and 0 s of that time.
    [(20, 0.6), (8, 0.5), (4, 0.0)],
)
def test_own_threads_wait_for_others_at_most_as_long_as_others_run(
    tmp_path: Path, busy_s: int, share: float
) -> None:
    write_process(tmp_path, ME, 10, 3)
    write_busy(tmp_path, 100)
    watch = ProcessorWatch(tmp_path)
    write_process(tmp_path, ME, 13, 5, children=f"{CHILD} ")
    write_process(tmp_path, CHILD, 1, 4)
    write_busy(tmp_path, 100 + busy_s)
    watch.look()
    assert watch.share == share


def test_a_process_that_has_ended_still_counts(tmp_path: Path) -> None:
    write_process(tmp_path, ME, 0, 0, children=str(CHILD))
    write_process(tmp_path, CHILD, 1, 1)
    write_busy(tmp_path, 0)
    watch = ProcessorWatch(tmp_path)
    write_process(tmp_path, CHILD, 3, 5)
    watch.look()
    write_process(tmp_path, ME, 0, 0)
    write_busy(tmp_path, 9)
    assert watch.look() == ProcessorTimes(2.0, 4.0, 9.0)


def test_where_the_kernel_does_not_count_nothing_is_known(tmp_path: Path) -> None:
    watch = ProcessorWatch(tmp_path)
    assert (watch.look(), watch.share) == (None, None)


def test_the_lost_time_is_divided_as_processes_waited() -> None:
    ranks = [ProcessorTimes(1.0, 3.0, 6.0), ProcessorTimes(3.0, 1.0, 6.0)]
    assert lost_s(ranks) == [1.5, 0.5]
