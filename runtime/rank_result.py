"""What one rank measured, as it travels to rank 0 and to the report."""

from dataclasses import dataclass, field

from synth.schedule.spans import Span


@dataclass
class RankResult:
    """What one rank measured."""

    rank: int
    host: str
    device: str
    processors: int
    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    static_bytes: int = 0
    peak_bytes: int = 0
    zero_ns: list[int] = field(default_factory=list)
    spans: list[list[Span]] = field(default_factory=list)
