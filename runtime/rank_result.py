"""The measurements of one rank, as they are sent to rank 0 and to the report."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from synth.profile.mesh import Mesh

from .execution.program.tracer import LoggedStep


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
    caching allocator has taken from the device at most, where that was asked for.
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


def of_first_pipeline(results: Sequence[RankResult], mesh: Mesh) -> list[RankResult]:
    """The results of each rank's first process, with the most memory of any process of the rank."""
    folded = []
    for rank in range(mesh.ranks):
        peers = [each for n, each in enumerate(results) if mesh.place(n).rank == rank]
        static_bytes = max(peer.static_bytes for peer in peers)
        peak_bytes = max(peer.peak_bytes for peer in peers)
        folded.append(replace(peers[0], static_bytes=static_bytes, peak_bytes=peak_bytes))
    return folded
