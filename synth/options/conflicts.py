"""Options that do not go together.

An option is given if it differs from its default.
"""

from collections.abc import Mapping

from synth.errors import SynthError
from synth.options.arguments.compare import CompareArguments
from synth.options.arguments.curve import CurveArguments
from synth.options.arguments.groups import RuntimeArguments
from synth.options.arguments.solve import SolveArguments
from synth.options.recompute import LAYERS, lists_layers
from synth.options.values import AUTO, EVEN, NONE, STEADY, word
from synth.plan.runtimes import Runtime
from synth.profile.links import MOST_RANKS
from synth.records.command_option import written
from synth.records.record import Record
from synth.schedule.placements import is_all_stages
from synth.units import shown

STAY, RING, GATHER = "stay", "ring", "gather"

_WITHIN_B = f"give none, or layers such as {LAYERS}0-3, which are recomputed within B"


def refuse_beside(given: Record, option: str, ways: Mapping[str, str], why: str = "") -> None:
    """Refuse the first of some options that is given although it does not go with an option.

    Args:
        option: the name of the field, or of several that are given together.
        ways: by the fields of the others, the way out.
        why: explains the option, within the sentence.
    """
    for other, way in ways.items():
        holder = _holder(given, other)
        if getattr(holder, other) == type(holder).model_fields[other].default:
            continue
        this = " ".join(_label(given, name) for name in option.split())
        raise SynthError(
            f"{_label(given, other)} and {f'{this}, {why},' if why else this} do not go together; "
            f"{way}; or leave §{option.split()[0]} out"
        )


def _holder(given: Record, name: str) -> Record:
    """Return the record that has a field: the options, or one of their groups."""
    groups = [given, *(value for _, value in given if isinstance(value, Record))]
    return next(group for group in groups if name in type(group).model_fields)


def _label(given: Record, name: str) -> str:
    """Return an option as it is given."""
    holder = _holder(given, name)
    return f"§{name}" if getattr(holder, name) is True else f"§{name} {written(holder, name)}"


def _is_within_b(recompute: str | None) -> bool:
    """Return True if nothing is recomputed in ops R."""
    return word(recompute or NONE).startswith(NONE) or lists_layers(recompute or NONE)


def check_versions(given: SolveArguments) -> None:
    """Refuse options that do not go with a pipeline that is never flushed."""
    if given.versions is None:
        return
    ways = {
        "target": "give a §mem_limit",
        "hint": "leave it out, as the search begins from the published schedules",
        "solver": "leave it out, as the models are for CP-SAT",
        "data_parallel": "leave it out, as every update would wait for the other pipelines",
        "weights": "leave it out, as versions are of weights at home",
        "offload": "leave it out, as such orders keep activations on their ranks",
        "objective": "leave it out, as a micro-batch's time in the full pipeline is minimized",
    }
    if word(given.placement or "") == AUTO:
        ways["placement"] = "give linear, looped:N, v or wave:N"
    if given.partition == AUTO:
        ways["partition"] = "give even, or the layers of each stage"
    if not _is_within_b(given.recompute):
        ways["recompute"] = _WITHIN_B
    refuse_beside(given, "versions", ways)


_UNEQUAL = "where ranks differ in speed (§rank_speed, or the profile's rank_speeds)"


def check_rows_of_unequal_ranks(given: CompareArguments) -> None:
    """Refuse rows of a comparison that assume ranks of equal speed."""
    ways = {
        "weights": "every rank would run all stages; leave it out",
        "versions": "such rows are not searched; leave it out",
        "planner": "the published planners assume equal ranks; leave it out",
    }
    for name, way_out in ways.items():
        if getattr(given, name):
            raise SynthError(f"{_UNEQUAL}, §{name} is not supported: {way_out}")
    _check_runtime_of_unequal_ranks(given.freedom)


def check_curve_of_unequal_ranks(given: CurveArguments) -> None:
    """Refuse options of a memory curve that assumes ranks of equal speed."""
    _check_weights_of_unequal_ranks(given.weights)
    if given.partition == AUTO:
        raise SynthError(_of_one_partition("a curve is of"))


def check_unequal_ranks(given: SolveArguments) -> None:
    """Refuse options of a search that assumes ranks of equal speed."""
    _check_weights_of_unequal_ranks(given.weights)
    if given.data_parallel > 1:
        raise SynthError(f"{_UNEQUAL}, §data_parallel is not supported; solve for one pipeline")
    _check_runtime_of_unequal_ranks(given.freedom)
    if given.target is not None and given.partition == AUTO:
        raise SynthError(_of_one_partition("§target is for"))


def _check_weights_of_unequal_ranks(weights: str) -> None:
    if weights != STAY:
        raise SynthError(
            f"{_UNEQUAL}, every rank would run all stages with §weights {weights}; give stay"
        )


def _check_runtime_of_unequal_ranks(freedom: RuntimeArguments) -> None:
    if freedom.runtime == Runtime.MEGATRON.value:
        raise SynthError(f"{_UNEQUAL}, §runtime {freedom.runtime} is not supported; give torch")


def _of_one_partition(what: str) -> str:
    return f"{_UNEQUAL}, {what} one partition; give §partition {EVEN}, or layers per stage"


def check_rows_without_flush(given: CompareArguments) -> None:
    """Refuse options of a comparison that its rows without a flush would not follow.

    They are searched on the linear placement, and recompute nothing.
    """
    ways = {}
    if not any(word(name) in (AUTO, "linear") for name in given.placement or [AUTO]):
        ways["placement"] = (
            "such a row is on the linear placement: give linear too, or take synth solve"
        )
    if word(given.recompute or NONE) != NONE:
        ways["recompute"] = "such a row recomputes nothing: give none"
    if given.versions:
        refuse_beside(given, "versions", ways)


def check_runtime(given: SolveArguments) -> None:
    """Refuse options of a search whose schedules another runtime cannot execute."""
    runtime = given.freedom.runtime
    ways = {
        "weights": f"{runtime} does not pass weights; give stay",
        "data_parallel": "solve for one pipeline, and replicate it there",
        "versions": f"{runtime} flushes the pipeline before each update",
    }
    if not given.freedom.allowed.orders_freely:
        why = f"{runtime} runs orders of its own, and none is searched"
        ways |= dict.fromkeys(("hint", "target", "solver"), why)
    _check_runtime(given, given.freedom, given.recompute, ways)


def check_rows_of_runtime(given: CompareArguments) -> None:
    """Refuse options of a comparison for rows that another runtime cannot execute."""
    ways = dict.fromkeys(("weights", "versions"), "the solver's rows are for that runtime")
    _check_runtime(given, given.freedom, given.recompute, ways)


def _check_runtime(
    given: Record, freedom: RuntimeArguments, recompute: str | None, ways: Mapping[str, str]
) -> None:
    runtime = freedom.runtime
    if freedom.allowed.runtime == Runtime.SYNTH:
        return
    offloads = f"{runtime} does not offload within a schedule"
    refuse_beside(given, "runtime", {"offload": offloads, **ways})
    if not _is_within_b(recompute) and word(recompute or "") != AUTO:
        raise SynthError(
            f"§recompute {shown(word(recompute or ''))} rebuilds activations in ops R, which "
            f"{runtime} does not have; give layers, such as {LAYERS}0-3 or {LAYERS}all, which are "
            f"recomputed within B, or none"
        )


def check_data_parallel(given: SolveArguments) -> None:
    """Refuse what is not for several data-parallel pipelines.

    Raises:
        SynthError: they have more ranks than a plan can name; or an option goes with one only.
    """
    if given.data_parallel == 1:
        return
    ranks = given.pipeline.ranks
    if ranks * given.data_parallel > MOST_RANKS:
        raise SynthError(
            f"§ranks {ranks} and §data_parallel {given.data_parallel} ask for "
            f"{ranks * given.data_parallel:,} ranks; give at most {MOST_RANKS:,}"
        )
    ways = {"target": "give a §mem_limit of a size"}
    if given.weights == RING:
        ways["weights"] = "with it each rank is data-parallel already; give gather or auto"
    refuse_beside(given, "data_parallel", ways)


def check_weights(given: SolveArguments) -> None:
    """Refuse what is for weights that stay with their stages."""
    ways = {
        "hint": "leave it out, as the search begins from the published schedules",
        "solver": "leave it out, as its model is of weights that stay",
    }
    if given.weights != AUTO:
        ways["offload"] = "leave it out, as where weights move activations stay on their ranks"
    if given.target == STEADY:
        ways["target"] = "a steady state is of weights that stay; give a time or a percentage"
    # With a target the pipelines beside them have one placement in one partition, as in a curve.
    names_pipelines = given.weights == AUTO and given.target is not None
    if names_pipelines and given.partition == AUTO:
        ways["partition"] = "with a target each candidate has one partition; give even"
    _check_choices(given, ways, is_placed=names_pipelines)


def check_weights_of_curve(given: CurveArguments) -> None:
    """Refuse what does not go with weight passing; with auto, pipelines have a placement."""
    ways = {}
    if given.partition == AUTO:
        ways["partition"] = "a curve has one partition for each candidate; give even"
    # Layers are refused where they are read.
    if given.weights != AUTO and not _is_within_b(given.recompute):
        ways["recompute"] = "a curve with it has none; give none"
    is_placed = given.weights == AUTO or word(given.placement) == "linear"
    _check_choices(given, ways, is_placed=is_placed)


def _check_choices(
    given: SolveArguments | CurveArguments, ways: Mapping[str, str], *, is_placed: bool
) -> None:
    """Refuse placements, partitions and recomputed stages that are not those of weight passing.

    Args:
        ways: the ways out of others that are refused, by their fields.
        is_placed: the placement is that of the pipelines beside them.
    """
    placement, why = word(given.placement or AUTO), "which searches all placements"
    has_sizes, is_another = given.partition not in (None, AUTO, EVEN), placement != AUTO
    if given.weights != AUTO:
        why = "with which every rank runs all stages of its micro-batches"
        has_sizes = given.partition == AUTO
        is_another = given.placement is not None and not is_all_stages(placement)
    choices = {}
    if is_another and not is_placed:
        choices["placement"] = "leave it out, or give all-stages:N with ring or gather"
    if has_sizes:
        choices["partition"] = "give even, or with ring or gather the layers of each stage"
    if given.weights != AUTO and not _is_within_b(given.recompute):
        choices["recompute"] = _WITHIN_B
    refuse_beside(given, "weights", choices | dict(ways), why)


def check_sharded_pipelines(given: SolveArguments) -> None:
    """Refuse what is not for data-parallel pipelines whose state may be sharded."""
    ways = {
        "hint": "leave it out, as the search begins from the published schedules",
        "solver": "leave it out",
    }
    if given.partition == AUTO:
        ways["partition"] = "give even or the layers of stages"
    if not _is_within_b(given.recompute):
        ways["recompute"] = _WITHIN_B
    refuse_beside(given, "weights data_parallel", ways, "which search the places of all-gathers")
