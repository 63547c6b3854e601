"""The provenance of a measured profile: device, date, command, and versions."""

import datetime
import subprocess
import sys
from pathlib import Path

import torch

from synth import version
from synth.profile import Provenance
from synth.profile.links import Links
from synth.profile.measurement_conditions import Conditions
from synth.profile.workload import Workload

from ..conversion import Conversion
from ..world import describe_device

_HOST_IS_CPU = "links.host is a copy within the CPU's own memory: there is no other to move to"


def provenance_of(
    device: torch.device,
    workload: Workload,
    links: Links | None,
    conditions: Conditions,
    conversion: Conversion | None = None,
    notes: str | None = None,
) -> Provenance:
    """The provenance of a profile that this process has just measured.

    Args:
        workload: the workload; its threads are the cores of a CPU.
        links: the measured links; None: there are none.
        conditions: how busy the machine was.
        conversion: of the layers, that notes tell of; None: there was none.
    """
    on_cuda = device.type == "cuda"
    converted = None if conversion is None else conversion.described
    told = [note for note in (notes, converted) if note is not None]
    if not on_cuda and links is not None and links.host is not None:
        told.append(_HOST_IS_CPU)
    return Provenance(
        source="measured",
        device=describe_device(device),
        date=datetime.date.today().isoformat(),
        command=" ".join(["synth", *sys.argv[1:]]),
        cores=None if on_cuda else workload.threads,
        driver=_driver() if on_cuda else None,
        cuda=torch.version.cuda if on_cuda else None,
        torch=torch.__version__,
        commit=_commit(),
        notes="\n".join(told) or None,
        conditions=conditions,
    )


def _driver() -> str | None:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    lines = _output_of(query, Path.cwd())
    return lines.splitlines()[0] if lines else None


def _commit() -> str | None:
    """The commit of a checkout of synth; an installed one has its version."""
    root = Path(version.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return f"synth {version.__version__}"
    return _output_of(["git", "rev-parse", "--short=12", "HEAD"], root)


def _output_of(command: list[str], folder: Path) -> str | None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
