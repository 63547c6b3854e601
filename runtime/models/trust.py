"""Guards the import of user code: files may name built-in models only, others the user names.

A plan or a profile is data that others may have written. Importing the module that it names would
run code, so this is done only for an address that the user has given.
"""

from synth.errors import SynthError
from synth.profile.workload import Workload

from .sizes import SIZES


def is_built_in(model: str) -> bool:
    """True if the model is a built-in one, not a user's function."""
    return model in SIZES


def trusted_address(workload: Workload, model: str | None) -> str:
    """Return the address of the model to build for a workload that was read from a file.

    Args:
        model: the address that the user gave, which replaces the file's; None: not given.

    Raises:
        SynthError: the file names a model that is not built in, and the user gave no address.
    """
    if model is None and not is_built_in(workload.model):
        raise SynthError(
            f"the plan names a model that is not built in, {workload.model!r}, and to import it "
            f"runs its code; give --model path/to/file.py:function (or hf:NAME) to say which code "
            f"builds the layers, or --trust to import what the plan names"
        )
    return model or workload.model
