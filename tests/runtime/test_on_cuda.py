"""Calls that only a CUDA device can carry out: one test for each kind, on one device.

The order of streams and events is checked by `execution/test_cuda_order.py` on any machine. Here
the device is kept busy where a missing wait would show in the numbers.
"""

import os
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from synth.families import generate
from synth.op_kinds import OpKind
from synth.runtime.execution.base.clock import OpClock
from synth.runtime.execution.stage.replay_input import RandomState
from synth.runtime.execution.transport.host.copy_lane import StreamLane
from synth.runtime.execution.transport.host.host_memory import host_memory
from synth.runtime.execution.transport.in_process.ranks import InProcessGroup, run_ranks
from synth.runtime.execution.transport.nccl.communicators import LINK, NcclGroups
from synth.runtime.execution.transport.thread_order import DeviceOrder
from synth.runtime.execution.weights.share_collectives import (
    start_all_gather,
    start_reduce_scatter,
)
from synth.runtime.free_memory import available_bytes
from synth.runtime.optimize.snapshot import IterationSnapshot
from synth.runtime.profiling.machine_watch import processes_on
from synth.runtime.profiling.meter import measure
from synth.runtime.profiling.seen_tensors import allocated_bytes
from synth.runtime.world import describe_device, join_world, pick_device
from synth.schedule.ops import Op
from tests.runtime.gradients import gradient_of
from tests.runtime.replaying import build_batch, build_stages, plain_autograd

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZE = 1 << 20


@pytest.fixture
def device() -> torch.device:
    made = torch.device("cuda", 0)
    torch.cuda.set_device(made)
    return made


def keep_busy(device: torch.device) -> None:
    """Give the current stream tens of milliseconds of work."""
    x = torch.ones(4096, 4096, device=device)
    for _ in range(20):
        torch.mm(x, x)


def test_the_thread_of_a_link_waits_for_what_another_stream_makes(device: torch.device) -> None:
    order, value = DeviceOrder(device), torch.zeros(SIZE, device=device)
    found: list[Any] = []
    torch.cuda.synchronize(device)
    keep_busy(device)
    value.fill_(7)
    source = order.made((value,))

    def send() -> None:
        with order.on_thread((0, 1)):
            found.append(source()[0].clone())
            found.append(torch.cuda.current_stream(device))

    for _ in range(2):
        thread = threading.Thread(target=send)
        thread.start()
        thread.join()
    torch.cuda.synchronize(device)
    first, stream, second, again = found
    assert bool((first == 7).all()) and bool((second == 7).all())
    assert stream == again != torch.cuda.current_stream(device)


class Arriving:
    """A receive that another stream carries out."""

    def __init__(self, device: torch.device) -> None:
        self.tensor = torch.zeros(SIZE, device=device)
        torch.cuda.synchronize(device)
        self._stream = torch.cuda.Stream(device)
        with torch.cuda.stream(self._stream):
            keep_busy(device)
            self.tensor.fill_(5)
        self._device = device

    def wait(self) -> tuple[Tensor, ...]:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return (self.tensor,)


def test_each_thread_waits_for_a_shared_receive(device: torch.device) -> None:
    order, found = DeviceOrder(device), list[Tensor]()
    source, pending = order.shared(Arriving(device))

    def relay() -> None:
        with order.on_thread((0, 1)):
            found.append(source()[0].clone())

    thread = threading.Thread(target=relay)
    thread.start()
    thread.join()
    found.append(pending.wait()[0].clone())
    torch.cuda.synchronize(device)
    assert all(bool((copy == 5).all()) for copy in found)


def test_lanes_copy_to_pinned_memory_and_back_in_order(device: torch.device) -> None:
    memory = host_memory(device)(SIZE)
    assert memory.is_pinned() and memory.dtype == torch.uint8
    given = torch.zeros(SIZE, dtype=torch.uint8, device=device)
    back = torch.zeros_like(given)
    torch.cuda.synchronize(device)
    keep_busy(device)
    given.fill_(3)
    left = StreamLane(device).copy((given,), (memory,), None)
    came = StreamLane(device).copy((memory,), (back,), left)
    left.wait()
    given.fill_(9)  # after the copy
    came.wait()
    doubled = back * 2
    left.synchronize()
    assert bool((memory == 3).all())
    assert bool((doubled == 6).all())


def test_the_clock_of_ops_reads_events(device: torch.device) -> None:
    clock = OpClock(device)
    for _ in range(2):  # events are used again
        clock.begin()
        for microbatch in range(2):
            with clock.measure(Op(OpKind.F, 0, microbatch)):
                keep_busy(device)
        first, second = clock.log().ops
        assert 0 <= first.start_us < first.end_us <= second.start_us < second.end_us


def test_the_counters_of_the_allocator_give_peak_and_net(device: torch.device) -> None:
    with measure(device) as found:
        kept = torch.empty(1000, device=device)
        torch.empty(100, device=device)
    assert allocated_bytes(kept) == 4096
    assert (found.peak_bytes, found.net_bytes) == (4096 + 512, 4096)


def test_the_driver_tells_of_the_device(device: torch.device) -> None:
    total = torch.cuda.get_device_properties(device).total_memory
    assert 0 < (available_bytes(device) or 0) <= total
    assert describe_device(device) == torch.cuda.get_device_name(0)
    assert pick_device("auto") == pick_device("cuda") == device
    there = processes_on(device)
    assert there is None or there >= 1  # None in most containers


def test_random_states_of_the_device_come_back(device: torch.device) -> None:
    here = torch.empty(1, device=device)
    before = RandomState.now((here,))
    drawn = torch.rand(8, device=device)
    assert RandomState.now((here,)) != before
    before.put_back()
    assert torch.equal(torch.rand(8, device=device), drawn)


def test_a_snapshot_restores_the_random_state_of_the_device(device: torch.device) -> None:
    snapshot = IterationSnapshot([nn.Linear(2, 2).to(device)], device)
    snapshot.mark()
    torch.rand(8, device=device)
    snapshot.mark()
    drawn = torch.rand(8, device=device)
    snapshot.restore()
    assert torch.equal(torch.rand(8, device=device), drawn)


@pytest.fixture
def groups(device: torch.device) -> Any:
    made = NcclGroups(HashStore(), (0,), 0, 60.0)
    made.device = device
    yield made
    made.abort()


def test_a_communicator_of_one_rank_connects_and_closes(
    groups: NcclGroups, device: torch.device
) -> None:
    group = groups.among((0,))
    assert isinstance(group, dist.ProcessGroupNCCL)
    assert groups.among((0,)) is group
    x = torch.full((4,), 2.0, device=device)
    group.allreduce([x]).wait()
    group.allreduce_coalesced([x, x.clone()]).wait()
    assert x.tolist() == [2.0] * 4
    groups.close()
    groups.close()  # nothing is left to free


def test_an_aborted_communicator_lets_the_process_go_on(
    groups: NcclGroups, device: torch.device
) -> None:
    groups.among((0,)).allreduce([torch.ones(SIZE, device=device)])
    groups.abort()
    assert torch.ones(4, device=device).sum().item() == 4


def test_links_have_high_priority_and_few_thread_blocks(
    groups: NcclGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NCCL_MAX_CTAS", "SYNTH_LINK_CTAS"):
        monkeypatch.delenv(name, raising=False)
    link, other = groups.among((0,), LINK), groups.among((0,))
    assert link.options.is_high_priority_stream and not other.options.is_high_priority_stream
    assert link.options.config.max_ctas == 4
    assert link.options.global_ranks_in_group == [0]


def test_streams_have_priorities(device: torch.device) -> None:
    low, high = torch.cuda.Stream(device).priority_range()
    assert high < low <= 0  # else the priority of links changes nothing


def test_shares_of_buffers_are_gathered_and_reduced_in_place(
    groups: NcclGroups, device: torch.device
) -> None:
    group, buffer = groups.among((0,)), torch.arange(8.0, device=device)
    for work in start_all_gather(group, [buffer]) + start_reduce_scatter(group, [buffer]):
        work.wait()
    assert buffer.tolist() == list(range(8))


def test_a_world_of_one_rank_is_on_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "MASTER_PORT": port}
    for name, value in world.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with join_world("cuda") as joined:
        assert (joined.backend, joined.device) == ("nccl", torch.device("cuda", 0))
        one = torch.ones(1, device=joined.device)
        dist.all_reduce(one)
        assert one.item() == 1


_PREPARE = """
import os, torch
from synth.runtime.execution.transport.nccl.communicators import prepare_cuda
if {starts}:
    torch.zeros(1, device="cuda")
prepare_cuda()
torch.zeros(1, device="cuda")
print(*(os.environ.get(f"CUDA_{{name}}") for name in ("MODULE_LOADING", "DEVICE_MAX_CONNECTIONS")))
"""


@pytest.mark.parametrize(
    ("starts", "found"),
    [
        (False, {"EAGER 32"}),
        (True, {"None None", "LAZY None"}),  # some versions of torch set LAZY when CUDA starts
    ],
)
def test_what_cuda_reads_at_its_start_is_set_before_it(starts: bool, found: set[str]) -> None:
    names = ("CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    code = [sys.executable, "-c", _PREPARE.format(starts=starts)]
    done = subprocess.run(code, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() in found, done.stderr


@pytest.mark.parametrize("family", ["1f1b", "zb-v", "pipeoffload:2,full", "weipipe"])
def test_gradients_of_ranks_as_threads_are_those_of_the_cpu(
    family: str, device: torch.device
) -> None:
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    schedule = generate(family, 2, 4)
    inputs, targets = build_batch(schedule.num_micro_batches)

    def train(group: InProcessGroup) -> dict[int, list[Tensor]]:
        torch.cuda.set_device(device)
        stages = [stage.to(device) for stage in build_stages(schedule.placement.num_stages)]
        held = {stage: [stages[stage]] for stage, _ in schedule.placement.held[group.rank]}
        pipeline = Pipeline(schedule, held, group=group, device=device)
        pipeline.step(Batch([x.to(device) for x in inputs], [y.to(device) for y in targets]))
        updated = pipeline.updated.items()
        return {n: [gradient_of(p).cpu() for p in each.parameters()] for n, each in updated}

    wanted = plain_autograd(schedule.placement.num_stages, schedule.num_micro_batches)
    for found in run_ranks(2, train):
        for stage, gradients in found.items():
            torch.testing.assert_close(gradients, wanted[stage], rtol=1e-4, atol=1e-5)
