"""Reading `--model`, `--inputs` and `--trust`, without which no code that a plan names is run."""

from collections.abc import Collection
from typing import Annotated

from synth.cli.answer.output import is_first_process, talk
from synth.errors import SynthError
from synth.profile.workload import Workload
from synth.records.command_option import CommandOption
from synth.run_options.train_options import TrainOptions

TrustOption = Annotated[
    bool,
    CommandOption(
        "Import the model, the inputs and the recomputation policies that PLAN names, which runs "
        "their code; not needed for built-in models and --data. With --model all but the model."
    ),
]


def file_of(address: str | None) -> str | None:
    """Return the file of `FILE.py:function` or `hf:FILE`, or the package in the place of it."""
    if address is None:
        return None
    if address.startswith("hf:"):
        return address.removeprefix("hf:") or None
    return address.rpartition(":")[0] or None


def read_model(
    workload: Workload, model: str | None, trust: bool, policies: Collection[str] = ()
) -> str | None:
    """Return the address that the user lets be imported; None: built-in models only.

    The code that `--trust` allows is named before it runs.

    Args:
        workload: the plan's.
        model: the address on the command line, which replaces that of the plan; None: none.
        trust: True if the user lets the plan's code be imported.
        policies: the plan's policies of recomputation.

    Raises:
        SynthError: both options are given and the plan names no code but the model; or none is, and
            the plan names a model of a user.
    """
    from synth.runtime.models import is_built_in, trusted_address

    names_more = workload.inputs is not None or any(":" in policy for policy in policies)
    if model is not None and trust and not names_more:
        raise SynthError(
            f"--model {model} and --trust name different code to import; give one of them"
        )
    if model is not None and not model.strip():
        raise SynthError("--model is empty; give path/to/file.py:function, or leave it out")
    if trust and model is None and not is_built_in(workload.model):
        if is_first_process():
            given = "".join(f" {name}={value!r}" for name, value in workload.arguments.items())
            talk(f"importing {workload.model}{given}, as the plan names it")
        return workload.model
    trusted_address(workload, model)
    return model


def check_policies(policies: Collection[str], trust: bool) -> None:
    """Check that those of a plan's policies that are a user's functions may be imported."""
    named = [policy for policy in policies if ":" in policy]
    if named and not trust:
        raise SynthError(
            f"the plan recomputes layers under {named[0]!r}, a function, and to import it runs its "
            f"code; give --trust to import what the plan names"
        )
    if is_first_process():
        for policy in named:
            talk(f"importing {policy}, as the plan names it")


def read_inputs(workload: Workload, training: TrainOptions, trust: bool) -> str | None:
    """Return the address of the function that makes micro-batches; None: there is none.

    Raises:
        SynthError: the plan's function may not be imported; or --data is given for a model that
            does not take token ids.
    """
    named = workload.inputs
    if training.data is not None and named is not None:
        raise SynthError(
            f"--data {training.data} has token ids, and the plan was profiled with the inputs of "
            f"{named}; give --inputs {named}"
        )
    if training.data is not None or training.inputs is not None or named is None:
        return training.inputs
    if not trust:
        raise SynthError(
            f"the plan names a function that makes its inputs, {named!r}, and to import it runs "
            f"its code; give --inputs path/to/file.py:function to say which code makes them, or "
            f"--trust to import what the plan names"
        )
    if is_first_process():
        talk(f"importing {named}, as the plan names it")
    return named
