"""Guards the import of a user's code: files may name built-in models only, the rest the user names.

A plan or a profile is data that others may have written. To import the module that it names would
make it a program, so that is done only for the address that the user has given.
"""

from synth.errors import SynthError
from synth.profile import Workload

from .sizes import SIZES
from .spec import ModelSpec


def is_built_in(model: str) -> bool:
    """True if the model is a built-in one, not a user's function."""
    return model in SIZES


def trusted_spec(workload: Workload, model: str | None) -> ModelSpec:
    """Return the model to build for a workload that was read from a file.

    Args:
        workload: as the file has it; its arguments are passed on.
        model: the address that the user gave, which replaces the file's; None: they gave none.

    Raises:
        SynthError: the user gave none, and the file names one that is not built in.
    """
    if model is None and not is_built_in(workload.model):
        raise SynthError(
            f"the plan names a model that is not built in, {workload.model!r}, and to import it "
            f"runs its code; give --model path/to/file.py:function to say which code builds the "
            f"layers, or --trust to import what the plan names"
        )
    return ModelSpec(model or workload.model, workload.arguments)
