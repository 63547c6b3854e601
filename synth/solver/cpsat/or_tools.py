"""OR-Tools' CP-SAT. Its import takes more than half a second, so it is imported at its first use.

Modules that use it have `from __future__ import annotations`, so that an annotation does not import
it; type aliases are strings for the same reason.
"""

from typing import TYPE_CHECKING

from synth.system.late_module import LateModule

if TYPE_CHECKING:
    from ortools.sat.python import cp_model as cp_model
    from ortools.sat.python import cp_model_helper as cp_model_helper
else:
    cp_model = LateModule("ortools.sat.python.cp_model")
    cp_model_helper = LateModule("ortools.sat.python.cp_model_helper")
