"""Measure a model's pipeline stages, synthesize the best schedule that fits, replay exactly it."""

from pathlib import Path

__version__ = "0.1.0"

# In a checkout `runtime/` and `profiles/` are siblings of this folder; installed, they are inside
# it. Either way they are imported as `synth.runtime` and `synth.profiles`.
_root = Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").exists() and (_root / "runtime").is_dir():
    __path__.append(str(_root))
