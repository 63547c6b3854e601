"""The commands that make the same as the page."""

import shlex

from synth.errors import SynthError
from synth.families import family_layout
from synth.ui.limits import Limits, named_stages
from synth.ui.setting import PipelineSetting, ShownSchedule

# The name of the profile that commands read, where the page has one without a file.
_PROFILE = "profile.json"


def commands(setting: PipelineSetting, limits: Limits, source: ShownSchedule | None = None) -> str:
    """Return the lines that make a schedule of a setting.

    Args:
        source: a published schedule; None, or a plan that was found: the search.
    """
    lines, profile = _model(setting)
    options = [profile, "--ranks", str(setting.ranks), "--micro-batches", setting.micro_batches]
    options += ["--mem-limit", setting.mem_limit]
    for link in setting.links or ():
        options += ["--link", link]
    if setting.objective != "makespan":
        options += ["--objective", setting.objective]
    if source is not None and source.schedule is not None and source.programs is None:
        options += ["--only", source.schedule, "--no-solve"]
        options += ["--partition", _partition(setting, source.schedule)]
        lines.append(_line("compare", *options, "--recompute", "none", "--save", "plans"))
    else:
        options += ["--placement", setting.placement, "--partition", _partition(setting)]
        options += ["--recompute", setting.recompute]
        time_limit = f"{min(setting.time_limit, limits.search_s):g}s"
        lines.append(_line("solve", *options, "--time-limit", time_limit, "-o", "plan.json"))
    return "\n".join(lines)


def curve_commands(setting: PipelineSetting, limits: Limits, points: int) -> str:
    """Return the lines that trace the memory curve of a setting, of at most so many points."""
    points = limits.points(points)
    lines, profile = _model(setting)
    options = [profile, "--ranks", setting.ranks, "--micro-batches", setting.micro_batches]
    for link in setting.links or ():
        options += ["--link", link]
    options += ["--placement", curve_placement(setting), "--partition", "even"]
    if setting.objective != "makespan":
        options += ["--objective", setting.objective]
    time_limit = limits.point_s(setting.time_limit, points)
    options += ["--points", points, "--time-limit", f"{time_limit:g}s"]
    lines.append(_line("frontier", *options, "-o", "curve.json"))
    return "\n".join(lines)


def curve_placement(setting: PipelineSetting) -> str:
    """Return the placement of a curve, which is of one."""
    return "linear" if setting.placement == "auto" else setting.placement


def _partition(setting: PipelineSetting, schedule: str | None = None) -> str:
    """Return the partition, unless it is of other stages than a published schedule has."""
    sizes = setting.partition
    if not sizes:
        return "even"
    if schedule is not None and len(sizes) != _stages(schedule, setting.ranks):
        return "even"
    return ",".join(map(str, sizes))


def _stages(schedule: str, ranks: int) -> int | None:
    """Return the stages of a published schedule; None: there is none of this name."""
    try:
        return named_stages(family_layout(schedule), ranks)
    except SynthError:
        return None


def _model(setting: PipelineSetting) -> tuple[list[str], str]:
    """Return the lines that make the profile, and its name."""
    opened = setting.model.startswith("opened-")
    if setting.sliders is not None:
        return [f"# {_PROFILE}: save it with the button Profile"], _PROFILE
    if setting.device is not None:
        config = "config.json" if opened else _file(setting.model)
        tensor = ["--tp", setting.tp] if setting.tp > 1 else []
        estimate = ["estimate", config, "--device", setting.device, *tensor, "-o", _PROFILE]
        return [_line(*estimate)], _PROFILE
    if opened:
        return [f"# {_PROFILE}: the file that was opened"], _PROFILE
    return [], _file(setting.model)


def _file(name: str) -> str:
    """Return a name that is not read as an option."""
    return f"./{name}" if name.startswith("-") else name


def _line(*words: object) -> str:
    return shlex.join(["synth", *map(str, words)])
