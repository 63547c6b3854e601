"""Measure a model's pipeline stages, synthesize the best schedule that fits, replay exactly it."""

from pathlib import Path

__version__ = "0.1.0"

# In a checkout `runtime` and `profiles` in this folder are symbolic links to its siblings. Without
# such links (Windows) the siblings are found through this path.
_root = Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").exists() and (_root / "runtime").is_dir():
    __path__.append(str(_root))
