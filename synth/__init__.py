"""Measure a model's pipeline stages, find the best schedule that fits in memory, and replay it.

`estimate` computes a profile, `solve` finds a plan for one, `plan_layout` chooses the layout of a
whole run, `simulate` makes the plan of a published schedule, `compare` shows the published
schedules beside the solver's, `frontier` traces time against memory, `prove` proves the bound of a
plan again, and `explain` says what holds a plan back. A `Pipeline` runs a plan in a training loop
of your own; it needs torch, which nothing else here does.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from synth.system.extras import TORCH, missing_of
from synth.version import __version__

if TYPE_CHECKING:
    from synth.api.comparing import compare
    from synth.api.curves import frontier
    from synth.api.estimating import estimate
    from synth.api.explaining import explain
    from synth.api.planning import plan_layout
    from synth.api.proving import prove
    from synth.api.simulating import simulate
    from synth.api.solving import solve
    from synth.errors import SynthError
    from synth.profile import Profile
    from synth.runtime.cutting import Chunk, Replicate
    from synth.runtime.models.cut import cut_model
    from synth.runtime.models.empty import empty_parameters
    from synth.runtime.pipeline import Pipeline
    from synth.runtime.pretrained.of_pipeline import load_weights, save_weights
    from synth.schedule.files.plan_file import Plan
    from synth.schedule.model import Schedule

__all__ = [
    "Chunk",
    "Pipeline",
    "Plan",
    "Profile",
    "Replicate",
    "Schedule",
    "SynthError",
    "__version__",
    "compare",
    "cut_model",
    "empty_parameters",
    "estimate",
    "explain",
    "frontier",
    "load_weights",
    "plan_layout",
    "prove",
    "save_weights",
    "simulate",
    "solve",
]

# Without torch `from synth import *`, `dir` and `help` leave out what needs it. Asking for it by
# name is a `MissingExtra`, but no AttributeError: `from synth import Pipeline` would hide its text.
if not TYPE_CHECKING and missing_of(TORCH):
    _OF_TORCH = {"Chunk", "Pipeline", "Replicate", "cut_model"}
    _OF_TORCH |= {"empty_parameters", "load_weights", "save_weights"}
    __all__ = [name for name in __all__ if name not in _OF_TORCH]

# In a checkout `runtime` and `profiles` in this folder are symbolic links to its siblings. Without
# such links (Windows) the siblings are found through this path.
_root = Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").exists() and (_root / "runtime").is_dir():
    __path__.append(str(_root))

# The module of each name, imported at its first use: `import synth` loads neither torch nor the
# solver.
_MODULES = {
    "Chunk": "synth.runtime.cutting",
    "Pipeline": "synth.runtime.pipeline",
    "Plan": "synth.schedule.files.plan_file",
    "Profile": "synth.profile",
    "Replicate": "synth.runtime.cutting",
    "Schedule": "synth.schedule.model",
    "SynthError": "synth.errors",
    "compare": "synth.api.comparing",
    "cut_model": "synth.runtime.models.cut",
    "empty_parameters": "synth.runtime.models.empty",
    "estimate": "synth.api.estimating",
    "explain": "synth.api.explaining",
    "frontier": "synth.api.curves",
    "load_weights": "synth.runtime.pretrained.of_pipeline",
    "plan_layout": "synth.api.planning",
    "prove": "synth.api.proving",
    "save_weights": "synth.runtime.pretrained.of_pipeline",
    "simulate": "synth.api.simulating",
    "solve": "synth.api.solving",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'synth' has no attribute {name!r}")
    importlib.import_module("synth.api")  # how notebooks show plans and profiles
    found = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
