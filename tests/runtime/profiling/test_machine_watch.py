"""The watch on the machine, with clocks and loads that the test sets."""

import math
from dataclasses import dataclass

import pytest
import torch

from synth.profile.workload import Workload
from synth.runtime.profiling.machine_watch import MachineWatch, Senses
from synth.runtime.profiling.profile_model import profile_model

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TINY = {"vocabulary_size": 64, "width": 32, "num_blocks": 1, "num_heads": 2, "context_length": 16}


@dataclass
class Machine:
    """A machine of four processors in the state that a test gives it."""

    load: float | None = 0.4
    wall_s: float = 100.0
    thread_s: float = 5.0
    processes: int | None = None

    def senses(self) -> Senses:
        return Senses(
            load=lambda: self.load,
            wall_s=lambda: self.wall_s,
            thread_s=lambda: self.thread_s,
            processes=lambda device: self.processes,
            num_processors=4,
        )

    def compute(self, watch: MachineWatch, wall_s: float, thread_s: float) -> None:
        with watch.measuring():
            self.wall_s += wall_s
            self.thread_s += thread_s


def test_the_load_is_per_processor_at_start_and_end() -> None:
    machine = Machine(load=1.2)
    watch = MachineWatch(senses=machine.senses())
    machine.load = 2.0
    found = watch.conditions(CPU, 0.1)
    assert (found.load_start, found.load_end, found.spread) == (0.3, 0.5, 0.1)


@pytest.mark.parametrize(("threads", "processes"), [(1, 1), (2, 1), (1, 3)])
def test_the_load_that_the_measurement_adds_itself_is_left_out(
    threads: int, processes: int
) -> None:
    machine = Machine(load=0.0)
    watch = MachineWatch(threads=threads, processes=processes, senses=machine.senses())
    machine.wall_s += 60
    machine.load = max(threads, processes) * (1 - 1 / math.e) + 0.8
    assert watch.conditions(CPU, 0.1).load_end == pytest.approx(0.2)
    machine.load = 0.1
    assert watch.conditions(CPU, 0.1).load_end == 0


def test_the_time_without_a_processor_is_that_of_the_measured_blocks() -> None:
    machine = Machine()
    watch = MachineWatch(senses=machine.senses())
    machine.compute(watch, wall_s=2.0, thread_s=2.0)
    machine.wall_s += 50  # building the model
    machine.compute(watch, wall_s=2.0, thread_s=1.0)
    assert watch.conditions(CPU, 0.1).waiting_share == 0.25


def test_with_several_threads_the_time_without_a_processor_is_not_told() -> None:
    machine = Machine()
    watch = MachineWatch(threads=2, senses=machine.senses())
    machine.compute(watch, wall_s=2.0, thread_s=1.0)
    assert watch.conditions(CPU, 0.1).waiting_share is None


def test_a_system_that_does_not_tell_its_load_has_none() -> None:
    found = MachineWatch(senses=Machine(load=None).senses()).conditions(CPU, 0.1)
    assert (found.load_start, found.load_end) == (None, None)


@pytest.mark.parametrize(("there", "others"), [(None, None), (0, 0), (1, 0), (3, 2)])
def test_on_cuda_other_processes_of_the_device_are_counted(
    there: int | None, others: int | None
) -> None:
    machine = Machine(load=9.0, processes=there)
    found = MachineWatch(senses=machine.senses()).conditions(CUDA, 0.1)
    assert (found.other_processes, found.load_start, found.waiting_share) == (others, None, None)


def test_a_profile_has_its_conditions() -> None:
    machine = Machine(load=3.2)
    workload = Workload(model="gpt", arguments=TINY, micro_batch_size=2, sequence_length=16)
    watch = MachineWatch(senses=machine.senses())
    profile = profile_model(workload, CPU, warmup=0, iterations=3, watch=watch)
    found = profile.provenance.conditions
    assert found is not None and found.load_start == 0.8
    assert found.spread is not None and found.spread > 0
