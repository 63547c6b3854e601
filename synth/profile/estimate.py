"""The mark of a profile that was computed: by which factors, and how far each may be off."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from synth.records.field_types import PlainText
from synth.records.record import Record

# At the end of a device's name: plans, tables and pictures name the device.
ESTIMATED = " (estimated)"

_Factor = Annotated[float, Field(gt=0, le=1e3)]
_Share = Annotated[float, Field(ge=0, le=10)]


class Factor(Record):
    """The factor of the computed times of one kind.

    Attributes:
        value: 1 without calibration.
        uncertainty: the standard deviation of its logarithm: 0.1 is about 10 % up or down.
        share: the share of this kind in F, B and W of the model.
    """

    value: _Factor = 1.0
    uncertainty: _Share
    share: Annotated[float, Field(ge=0, le=1)] = 0.0


class Estimate(Record):
    """How the numbers of a profile were computed.

    Attributes:
        factors: by kind: matmul, memory and communication.
        scatter: of steps about their estimates with the right factors, as a share.
        memory_uncertainty: of the bytes, as a share.
        calibration: what the factors were fitted to; None: they were not.
        layout: the sizes that were given, for display.
        launch_bound: by kind of layer the passes (F, B, W) that take as long as the host launches
            their kernels, so that they tell nothing of the kernels.
    """

    factors: Mapping[str, Factor]
    scatter: _Share = 0.05
    memory_uncertainty: _Share = 0.25
    calibration: PlainText | None = None
    layout: PlainText
    launch_bound: Mapping[PlainText, tuple[PlainText, ...]] = {}

    @property
    def uncertainty(self) -> float:
        """Of F, B and W together, if the factors are independent."""
        squares = sum((f.share * f.uncertainty) ** 2 for f in self.factors.values())
        return float((squares + self.scatter**2) ** 0.5)

    @property
    def words(self) -> str:
        """A line: the times' uncertainty, and what the factors are fitted to."""
        fitted = "not calibrated" if self.calibration is None else f"fitted to {self.calibration}"
        bound = "".join(
            f"; {', '.join(passes)} of {kind} take as long as the host launches their kernels"
            for kind, passes in self.launch_bound.items()
        )
        return (
            f"estimated, not measured: times ± {100 * self.uncertainty:.0f} %, "
            f"memory ± {100 * self.memory_uncertainty:.0f} % ({fitted}){bound}"
        )
