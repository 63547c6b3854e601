"""The measurements of a case, as ranks send them to the report."""

from dataclasses import dataclass, field


@dataclass
class Sample:
    """The measurements of one rank and one runtime; one entry per round."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    difference: float = 0.0
