"""The line of the model's code that runs, and what its author can do, for errors."""

import traceback
from pathlib import Path

import torch

from synth.errors import SynthError

WAY_OUT = "move this code into a layer, pass what it makes as an input, or cut elsewhere (--cut)"


def reads(name: str) -> SynthError:
    """The error about code that reads numbers of a tensor by a function of this name."""
    return SynthError(
        f"the model's code outside of its layers reads numbers of a tensor that depends on "
        f"the inputs ({name} at {line_run()}), so its steps or shapes may differ from batch to "
        f"batch: {WAY_OUT}"
    )


def line_run() -> str:
    """Name the line of the model's code that runs, the last one outside of torch and
    this folder."""
    skipped = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frames = traceback.extract_stack()
    frame = next((f for f in reversed(frames) if not f.filename.startswith(skipped)), frames[-1])
    return f"{frame.filename}, line {frame.lineno}"
