"""Reading `--model` and `--trust`, without which `synth run` imports no code that a plan names."""

from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.answer.output import is_first_process, talk
from synth.errors import SynthError

if TYPE_CHECKING:
    from synth.profile import Workload

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="FILE.py:FUNCTION",
        help="Model to train, also as package.module:function, instead of the one that PLAN names "
        "(which is then not imported).",
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Import the model that PLAN names, which runs its code; not needed for built-in "
        "models.",
    ),
]


def read_model(workload: "Workload", model: str | None, trust: bool) -> str | None:
    """Return the address that the user lets be imported; None: built-in models only.

    The code that `--trust` allows is named before it runs.

    Raises:
        SynthError: both options are given, or none and the plan names a model of a user.
    """
    from synth.runtime.models import is_built_in, trusted_spec

    if model is not None and trust:
        raise SynthError(
            f"--model {model} and --trust name different code to import; give one of them"
        )
    if model is not None and not model.strip():
        raise SynthError("--model is empty; give path/to/file.py:function, or leave it out")
    if trust and not is_built_in(workload.model):
        if is_first_process():
            given = "".join(f" {name}={value!r}" for name, value in workload.arguments.items())
            talk(f"importing {workload.model}{given}, as the plan names it")
        return workload.model
    trusted_spec(workload, model)
    return model
