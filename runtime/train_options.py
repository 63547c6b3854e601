"""What a run of training may choose; everything else the plan says."""

from pathlib import Path

from synth.record import Record


class TrainOptions(Record):
    """What a run may choose; everything else the plan says."""

    data: Path
    steps: int = 20
    learning_rate: float = 1e-3
    clip_norm: float | None = 1.0
    seed: int = 0
    device: str = "auto"
    timeout_s: float = 300.0
