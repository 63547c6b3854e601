"""The measurements of one rank, as they are sent to rank 0 and to the report."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from synth.profile.mesh import Mesh
from synth.system.processor_waits import ProcessorTimes, lost_s

from .execution.program.tracer import LoggedStep

# Steps before the first one whose time counts: they warm up, and measure memory.
FIRST_TIMED = 2


@dataclass
class RankResult:
    """The measurements of one rank, step by step from `first_step` on.

    `program_seconds` are of one program with STEPs, which is less than a step if gradients
    accumulate. `remark` is a message for the user about the run. `tokens_per_step` are the tokens
    of an optimizer step on all ranks together. `stopped_at` is the number of steps after which
    SIGTERM ended the run early. `num_pipelines` train side by side; `processors` is the share of
    the machine's that a pipeline has with one process of each rank. `late`: steps were validated
    later. `extra_bytes`: see `optimizer_headroom`. `early_ops` has the number of ops of each step
    that ran before the plan's next one; empty without look-ahead. `reserved_bytes` is what CUDA's
    caching allocator has taken from the device at most, where that was asked for. `processor_times`
    are of the process in the timed steps, and `waiting_share` is the share of these steps that it
    waited for a processor which other programs had; None: unknown.
    """

    rank: int
    host: str
    device: str
    processors: int
    first_step: int = 0
    num_pipelines: int = 1
    tokens_per_step: int = 0
    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    program_seconds: list[float] = field(default_factory=list)
    late: bool = False
    extra_bytes: int = 0
    early_ops: list[int] = field(default_factory=list)
    static_bytes: int = 0
    peak_bytes: int = 0
    reserved_bytes: int | None = None
    traced: list[LoggedStep] = field(default_factory=list)
    remark: str | None = None
    failed_checkpoint: int | None = None
    stopped_at: int | None = None
    processor_times: ProcessorTimes | None = None
    waiting_share: float | None = None


def of_first_pipeline(results: Sequence[RankResult], mesh: Mesh) -> list[RankResult]:
    """The results of each rank's first process, with the most memory of any process of the rank."""
    _share_waits(results)
    folded = []
    for rank in range(mesh.ranks):
        peers = [each for n, each in enumerate(results) if mesh.place(n).rank == rank]
        static_bytes = max(peer.static_bytes for peer in peers)
        peak_bytes = max(peer.peak_bytes for peer in peers)
        folded.append(replace(peers[0], static_bytes=static_bytes, peak_bytes=peak_bytes))
    return folded


def _share_waits(results: Sequence[RankResult]) -> None:
    """Set the share of the timed steps that each process waited, by what ran on its machine."""
    for host in {each.host for each in results}:
        there = [each for each in results if each.host == host]
        times = [each.processor_times for each in there if each.processor_times is not None]
        if len(times) < len(there):
            continue
        for each, lost in zip(there, lost_s(times), strict=True):
            timed_s = sum(each.step_seconds[FIRST_TIMED:])
            each.waiting_share = min(1.0, round(lost / timed_s, 4)) if timed_s else None
