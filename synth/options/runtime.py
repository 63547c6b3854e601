"""The options that do not go with `--for`."""

from collections.abc import Mapping

from synth.errors import SynthError
from synth.options.arguments.compare import CompareArguments
from synth.options.arguments.groups import RuntimeArguments
from synth.options.arguments.solve import SolveArguments
from synth.options.conflicts import refuse_beside
from synth.options.defaults import AUTO, NONE
from synth.options.hint import hint_name
from synth.options.keywords import word
from synth.options.recompute import LAYERS
from synth.plan.runtimes import Runtime
from synth.units import shown


def check_goes_with_runtime(given: SolveArguments) -> None:
    """Refuse options of a search whose schedules another runtime cannot execute.

    Raises:
        SynthError: one is given.
    """
    runtime = given.freedom.runtime
    refused = {
        f"§weights {given.weights}": (
            given.weights != "stay",
            f"{runtime} does not pass weights; give stay",
        ),
        f"§data_parallel {given.data_parallel}": (
            given.data_parallel > 1,
            "solve for one pipeline, and replicate it there",
        ),
        f"§versions {given.versions}": (
            given.versions is not None,
            f"{runtime} flushes the pipeline before each update",
        ),
    }
    if not given.freedom.allowed.orders_freely:
        refused |= _of_orders(given)
    _check(given.freedom, given.recompute, refused)


def _of_orders(given: SolveArguments) -> dict[str, tuple[bool, str]]:
    """Return the options of a search for an order, which a runtime with its own orders lacks."""
    why = f"{given.freedom.runtime} runs orders of its own, and none is searched"
    return {
        f"§hint {hint_name(given.hint)}": (given.hint is not None, why),
        f"§target {given.target}": (given.target is not None, why),
        f"§solver {given.solver}": (given.solver == "milp", why),
    }


def check_rows_go_with_runtime(given: CompareArguments) -> None:
    """Refuse options of a comparison for rows that another runtime cannot execute.

    Raises:
        SynthError: one is given.
    """
    why = "the solver's rows are for that runtime"
    refused = {
        f"§weights {', '.join(given.weights or ())}": (bool(given.weights), why),
        f"§versions {', '.join(given.versions or ())}": (bool(given.versions), why),
    }
    _check(given.freedom, given.recompute, refused)


def _check(
    freedom: RuntimeArguments, recompute_text: str | None, others: Mapping[str, tuple[bool, str]]
) -> None:
    runtime = freedom.runtime
    if freedom.allowed.runtime == Runtime.SYNTH:
        return
    offloads = (freedom.offload, f"{runtime} does not offload within a schedule")
    refuse_beside(f"§runtime {runtime}", {"§offload": offloads, **others})
    recompute = word(recompute_text or NONE)
    if recompute not in (NONE, AUTO) and not recompute.startswith(LAYERS):
        raise SynthError(
            f"§recompute {shown(recompute)} rebuilds activations in ops R, which {runtime} does "
            f"not have; give layers, such as {LAYERS}0-3 or {LAYERS}all, which are recomputed "
            f"within B, or none"
        )
