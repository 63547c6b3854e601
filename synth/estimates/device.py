"""Devices: peaks, memory, links, and by which measured kernels their operations are timed."""

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from synth.errors import SynthError
from synth.records.field_types import PlainText
from synth.records.record import Record, describe
from synth.records.safe_read import read_object
from synth.suggestions import did_you_mean

_Rate = Annotated[float, Field(gt=0, le=1e21)]
_Share = Annotated[float, Field(gt=0, le=1)]

# Devices of a node that is taken whole; a rack has more.
MOST_IN_NODE = 8
# The devices whose kernels are measured in `data/kernels.csv` and `data/attention.csv`.
MEASURED = ("a100", "h100", "b200")


class Device(Record):
    """A device; rates are those of its data sheet, bytes and FLOP are decimal.

    Attributes:
        peak_flops_per_s: of dense matrix products, by dtype: bfloat16, float8, float4.
        memory_bytes: of its memory, and `memory_bytes_per_s` to it.
        link_bytes_per_s: of a device to the others of its node, one way.
        ranks_per_node: the devices that these links connect.
        nic_bytes_per_s: of a device to other nodes, one way.
        measured_like: the device whose measured efficiencies count for this one.
        narrow_efficiency: the efficiency of float8 and float4 over that of bfloat16.
        memory_efficiency: the share of `memory_bytes_per_s` that kernels reach.
        sources: where the numbers are from.
    """

    name: PlainText
    title: PlainText
    peak_flops_per_s: dict[str, _Rate]
    memory_bytes: Annotated[int, Field(gt=0, le=1 << 50)]
    memory_bytes_per_s: _Rate
    link_bytes_per_s: _Rate
    ranks_per_node: Annotated[int, Field(gt=0, le=1 << 16)] = 8
    nic_bytes_per_s: _Rate
    measured_like: str = "h100"
    narrow_efficiency: _Share = 0.87
    memory_efficiency: _Share = 0.75
    sources: dict[str, PlainText] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.measured_like not in MEASURED:
            raise ValueError(f"measured_like must be one of {', '.join(MEASURED)}")
        if "bfloat16" not in self.peak_flops_per_s:
            raise ValueError("peak_flops_per_s lacks bfloat16")
        return self

    def filled_by(self, ranks: int) -> "Device":
        """Return the device in racks of which jobs take what groups of ranks fill.

        A rack of 72 devices is larger than the groups of 64 that runs have; schedulers give whole
        segments of it then (Slurm's block topology: 16 nodes of 4). Nodes of up to 8 are taken
        whole, and racks of which groups would fill less.

        Args:
            ranks: the devices of a rank of the pipeline and of its copies.
        """
        node = self.ranks_per_node
        if node <= MOST_IN_NODE:
            return self
        sizes = range(1, node + 1)
        used = max(size for size in sizes if ranks % size == 0 or size % ranks == 0)
        return self.replace(ranks_per_node=used) if used >= MOST_IN_NODE else self

    def peak(self, dtype: str) -> float:
        """FLOP/s of dense matrix products in a dtype.

        Raises:
            SynthError: the device has none of this dtype.
        """
        found = self.peak_flops_per_s.get(dtype)
        if found is None:
            raise SynthError(
                f"{self.title} has no matrix products in {dtype}; it has "
                f"{', '.join(self.peak_flops_per_s)}"
            )
        return found


def device_of(name_or_path: str) -> Device:
    """Return a known device, or that of a JSON file with the fields of `Device`.

    Raises:
        SynthError: neither, or the file is no device.
    """
    known = _known()
    if (found := known.get(name_or_path.lower())) is not None:
        return found
    path = Path(name_or_path)
    if not path.is_file():
        raise SynthError(
            f"device {name_or_path!r:.80} is neither known nor a file; known: {', '.join(known)}"
            f"{did_you_mean(name_or_path.lower(), known)}"
        )
    try:
        return Device.model_validate(read_object(path, "a device"))
    except ValidationError as error:
        raise SynthError(f"{path} is no device:\n{describe(error)}") from None


def devices() -> tuple[Device, ...]:
    """All known devices."""
    return tuple(_known().values())


@cache
def _known() -> dict[str, Device]:
    text = resources.files(__package__).joinpath("data", "devices.json").read_text("utf-8")
    listed = [Device.model_validate(given) for given in json.loads(text)["devices"]]
    return {device.name: device for device in listed}
