"""Calibrations: the factors of a device and a training program, as files and as shipped."""

import json
from functools import cache
from importlib import resources
from math import hypot
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from synth.errors import SynthError
from synth.estimates.device import Device
from synth.estimates.factors import Factors
from synth.profile.estimate import Factor
from synth.records.field_types import PlainText
from synth.records.record import FileRecord, Record

NO_CALIBRATION = "none"


class Residual(Record):
    """A row of a calibration, and how far the fitted estimate is from it."""

    row: PlainText
    measured_us: Annotated[float, Field(gt=0)]
    before: float = Field(description="estimate over measured, less 1, without calibration")
    after: float = Field(description="the same with the fitted factors")


class Calibration(FileRecord):
    """A whole calibration file."""

    FORMAT: ClassVar[str] = "synth-calibration"
    VERSION: ClassVar[int] = 1
    MADE_BY: ClassVar[tuple[str, ...]] = ("synth calibrate",)

    device: PlainText
    software: PlainText
    source: PlainText
    date: str
    matmul: Factor
    memory: Factor
    communication: Factor
    scatter: float = Field(ge=0, le=10, description="of the rows about the fit")
    residuals: tuple[Residual, ...] = Field(min_length=1)

    @property
    def factors(self) -> Factors:
        """The factors, with their uncertainties."""
        fitted = (self.matmul, self.memory, self.communication)
        rows = "row" if len(self.residuals) == 1 else "rows"
        return Factors(
            (fitted[0].value, fitted[1].value, fitted[2].value),
            (fitted[0].uncertainty, fitted[1].uncertainty, fitted[2].uncertainty),
            f"{len(self.residuals)} {rows} of {self.source}",
            self.scatter,
        )


# Added to the deviations of factors that were fitted to another device, whose kernels these are.
_OTHER_DEVICE = 0.1


def factors_of(given: str | None, device: Device, software: str) -> Factors:
    """Return the factors of a file, the shipped ones, or those without calibration.

    Args:
        given: the path of a file; `none`: not calibrated; None: the shipped ones, if there are any.
        device: the device; without own shipped factors it has those of the device whose measured
            kernels count for it, with larger deviations.
        software: the name of the training program.

    Raises:
        SynthError: the file is no calibration, or that of another device.
    """
    if given == NO_CALIBRATION:
        return Factors()
    if given is None:
        shipped = shipped_calibrations()
        if (found := shipped.get((device.name, software))) is not None:
            return found.factors
        found = shipped.get((device.measured_like, software))
        return Factors() if found is None else _of_another(found.factors, device.measured_like)
    read = Calibration.load(Path(given))
    if (read.device, read.software) != (device.name, software):
        raise SynthError(
            f"{given} is fitted to {read.software} on {read.device}, not {software} on "
            f"{device.name}; "
            f"give that, or another §calibration"
        )
    return read.factors


def _of_another(factors: Factors, device: str) -> Factors:
    matmul, memory, communication = (hypot(one, _OTHER_DEVICE) for one in factors.deviations)
    text = f"{factors.calibration}, on {device}"
    return Factors(factors.values, (matmul, memory, communication), text, factors.scatter)


@cache
def shipped_calibrations() -> dict[tuple[str, str], Calibration]:
    """The calibrations that ship with synth, by device and training program."""
    file = resources.files(__package__).joinpath("data", "calibrations.json")
    listed = json.loads(file.read_text(encoding="utf-8"))["calibrations"]
    read = [Calibration.model_validate(each) for each in listed]
    return {(each.device, each.software): each for each in read}
