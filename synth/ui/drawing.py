"""Schedules as the page draws them: published ones, plans, and orders that are made by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from time import monotonic
from typing import Any

from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import (
    current_name,
    families,
    family_layout,
    family_of,
    family_placement,
    generate,
    names_on,
    placements_for,
)
from synth.plan.partition.balance import balance
from synth.plan.partition.divided import as_parts, partitions
from synth.profile import Profile
from synth.report.chart.chart import Chart
from synth.report.html.page import chart_data
from synth.schedule.error import ScheduleError
from synth.schedule.files.claim import Claim
from synth.schedule.files.plan_file import Plan
from synth.schedule.files.program_text import check_size, num_ops, parse_programs, program_lines
from synth.schedule.model import Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.placements import placement, usual
from synth.schedule.simulate import Timeline
from synth.schedule.verify import check_caps, verify
from synth.ui.limits import Limits, named_stages
from synth.ui.models import Models, Recent, is_of_model
from synth.ui.setting import PipelineSetting, ShownSchedule
from synth.units import counted

# Seconds for an even partition, whose search is cut short behind them.
_PARTITION_S = 1.0

# Schedules of the largest size whose ops are kept.
_KEPT = 4

# The name of an order that was made by hand.
_BY_HAND = "by hand"


class NotDrawn(SynthError):
    """A setting that cannot be drawn.

    Attributes:
        choices: the schedules to choose from.
    """

    def __init__(self, words: str, choices: list[dict[str, Any]]) -> None:
        super().__init__(words)
        self.choices = choices


@dataclass(frozen=True, eq=False)
class DrawnSchedule:
    """A verified schedule.

    Attributes:
        plan: without the limits that it exceeds.
        caps_bytes: the limits asked for.
        exceeds: the verifier's words on a limit that is exceeded; empty: it fits.
    """

    plan: Plan
    timeline: Timeline
    caps_bytes: tuple[int, ...] | None
    exceeds: str = ""

    def data(self) -> dict[str, Any]:
        """Return what the page shows."""
        plan = self.plan
        chart = replace(Chart.planned(plan.name, plan, self.timeline), caps_bytes=self.caps_bytes)
        return {
            "chart": chart_data(chart),
            "name": plan.name,
            "value_us": plan.claim.value_us,
            "bound_us": plan.claim.lower_bound_us,
            "makespan_us": self.timeline.makespan_us,
            "period_us": self.timeline.period_us,
            "peak_bytes": max(plan.claim.peak_bytes),
            "partition": list(plan.partition),
            "layers": _layers_of(plan),
            "exceeds": self.exceeds,
        }


def _layers_of(plan: Plan) -> list[tuple[str, float]]:
    """Return the name and the mean work (µs) of each layer of a plan, of which stages are known."""
    return [
        (plan.layers[layer], stage.work_us / size)
        for at, (stage, size) in enumerate(zip(plan.costs.stages, plan.partition, strict=True))
        for layer in plan.layers_of(at)
    ]


class Drawings:
    """Makes the schedules that the page names, and keeps the latest."""

    def __init__(self, models: Models, limits: Limits) -> None:
        self._models, self._limits = models, limits
        self._kept: Recent[DrawnSchedule] = Recent(
            lambda drawn: sum(map(num_ops, drawn.plan.programs)), _KEPT * limits.most_ops
        )
        self._even: Recent[tuple[int, ...]] = Recent()

    def of(self, setting: PipelineSetting, source: ShownSchedule) -> DrawnSchedule:
        """Return a schedule of a setting.

        Raises:
            SynthError: it is not known, too large, does not admit the numbers, or cannot run.
        """
        if (source.schedule is None) == (source.plan is None):
            raise SynthError("a schedule is a published one or a plan; give the name of one")
        base = self._base(setting, source)
        return base if source.programs is None else self._by_hand(base, source.programs)

    def takes_long(self, setting: PipelineSetting, source: ShownSchedule) -> bool:
        """Return True if a published schedule is a search by itself, and has not been made yet."""
        name = current_name(source.schedule or "")
        if name.partition(":")[0] not in families() or not family_of(name).searches:
            return False
        return self._kept.get(_key(name, setting, self.profile(setting))) is None

    def _base(self, setting: PipelineSetting, source: ShownSchedule) -> DrawnSchedule:
        if source.plan is not None:
            plan = self._models.plan(source.plan)
            self._limits.check_size(plan.placed, plan.num_micro_batches)
            profile = self.profile(setting)
            memory = setting.arguments(profile, self._limits).memory
            caps = memory.limits(plan.num_ranks, profile).caps_bytes or plan.caps_bytes
            key: Any = (source.plan, plan.profile_fingerprint, plan.programs, caps)
            return self._kept.made(key, lambda: _of_plan(plan, caps))
        name = current_name(source.schedule or "")
        profile = self.profile(setting)
        key = _key(name, setting, profile)
        return self._kept.made(key, lambda: self._published(name, setting, profile))

    def differs(self, setting: PipelineSetting, plan: Plan) -> str:
        """Return in words how a plan is of another setting; empty: it is of this one."""
        profile = self.profile(setting)
        has_model = is_of_model(plan, profile)
        pairs = [
            (f"m = {plan.num_micro_batches}", f"m = {setting.micro_batches}"),
            (counted(plan.num_ranks, "rank"), counted(setting.ranks, "rank")),
        ]
        if has_model and plan.profile_fingerprint != profile.fingerprint():
            pairs.append(("other links", "their own"))
        elif not has_model:
            same = plan.profile_name == profile.name
            pairs.append(
                (f"another {plan.profile_name}" if same else plan.profile_name, profile.name)
            )
        other = [pair for pair in pairs if pair[0] != pair[1]]
        if not other:
            return ""
        of_plan, of_setting = (", ".join(words) for words in zip(*other, strict=True))
        return f"plan for {of_plan}; settings have {of_setting}"

    def profile(self, setting: PipelineSetting) -> Profile:
        """Return the profile of a setting, with its links."""
        profile = self._models.profile(setting)
        return setting.arguments(profile, self._limits).hardware.profile(profile)

    def _published(self, name: str, setting: PipelineSetting, profile: Profile) -> DrawnSchedule:
        if name.partition(":")[0] not in families():
            raise SynthError(f"there is no published schedule {name!r:.60}; choose one of the list")
        layout = family_layout(name)
        self._limits.check_named(layout, setting.ranks, setting.micro_batches)
        where = family_placement(name, setting.ranks)
        self._limits.check_size(where, setting.micro_batches, is_timed=family_of(name).timed)
        memory = setting.arguments(profile, self._limits).memory
        caps = memory.limits(where.num_ranks, profile).caps_bytes
        parts = as_parts(profile, name, setting.ranks)
        if parts is profile:
            sizes = self._sizes(setting, profile, where, caps)
        else:
            sizes = partitions(parts, setting.ranks)[0]
        costs = partition_costs(parts, sizes, where.ranks)
        schedule = generate(
            name, setting.ranks, setting.micro_batches, costs=costs, caps_bytes=caps
        )
        _, timeline = verify(schedule, costs)
        exceeds = _excess(timeline, caps)
        plan = Plan.of(
            profile,
            sizes,
            schedule,
            claim=Claim.of_timeline(timeline),
            caps_bytes=None if exceeds else caps,
        )
        return DrawnSchedule(plan, timeline, caps, exceeds)

    def _sizes(
        self,
        setting: PipelineSetting,
        profile: Profile,
        where: Placement,
        caps: tuple[int, ...] | None,
    ) -> tuple[int, ...]:
        """Return the partition of a setting if it is for as many stages, or else an even one."""
        if setting.partition is not None and len(setting.partition) == where.num_stages:
            return _given_sizes(setting.partition, profile)
        key = (profile.fingerprint(), where, caps, setting.micro_batches)
        return self._even.made(key, lambda: _even_sizes(setting, profile, where, caps))

    def _by_hand(self, base: DrawnSchedule, programs: Sequence[str]) -> DrawnSchedule:
        """Verify another order of the ops of a plan.

        Raises:
            ScheduleError: it cannot run; in the verifier's words.
        """
        plan = base.plan
        if len(programs) != plan.num_ranks:
            raise ScheduleError(f"{len(programs)} programs are given for {plan.num_ranks} ranks")
        before = plan.schedule()
        copies = plan.placed.num_stages * len(plan.placement)
        try:
            check_size(programs, copies, plan.num_micro_batches)
        except ValueError as error:
            raise ScheduleError(str(error)) from None
        parsed, overlapped = parse_programs(programs)
        overlapped |= _still_behind(before, parsed)
        schedule = replace(before, name=_BY_HAND, programs=parsed, overlapped=overlapped)
        _, timeline = verify(schedule, plan.costs)
        exceeds = _excess(timeline, base.caps_bytes)
        changed = plan.replace(
            name=_BY_HAND,
            programs=program_lines(schedule),
            caps_bytes=None if exceeds else base.caps_bytes,
            arguments={},
            claim=Claim.of_timeline(timeline),
        )
        return DrawnSchedule(changed, timeline, base.caps_bytes, exceeds)


def _still_behind(before: Schedule, programs: Sequence[Sequence[Op]]) -> frozenset[Op]:
    """Return the F's that ran at once with the BW that is behind them in other programs, too.

    The page moves ops one by one and does not say which run at once.
    """
    ran = {
        pair for ops in before.programs for pair in pairwise(ops) if pair[0] in before.overlapped
    }
    return frozenset(pair[0] for ops in programs for pair in pairwise(ops) if pair in ran)


def _key(name: str, setting: PipelineSetting, profile: Profile) -> tuple[Any, ...]:
    """Return all that a published schedule depends on."""
    sizes = (setting.ranks, setting.micro_batches, setting.partition, setting.mem_limit)
    return name, profile.fingerprint(), sizes


def _of_plan(plan: Plan, caps: tuple[int, ...] | None) -> DrawnSchedule:
    """Check a plan, also against limits that are not its own."""
    timeline = plan.check()[1]
    exceeds = _excess(timeline, caps)
    return DrawnSchedule(plan, timeline, caps, exceeds)


def _excess(timeline: Timeline, caps: tuple[int, ...] | None) -> str:
    """Return the verifier's words on a memory limit that is exceeded; empty: none is."""
    if caps is not None:
        try:
            check_caps(timeline.lowered, caps)
        except ScheduleError as error:
            return str(error)
    return ""


def _given_sizes(sizes: tuple[int, ...], profile: Profile) -> tuple[int, ...]:
    if min(sizes) < 1 or sum(sizes) != len(profile.layers):
        raise SynthError(
            f"the partition {','.join(map(str, sizes))} is not one of {len(profile.layers)} "
            f"layers; every stage needs at least one, and all together {len(profile.layers)}"
        )
    return sizes


def _even_sizes(
    setting: PipelineSetting, profile: Profile, where: Placement, caps: tuple[int, ...] | None
) -> tuple[int, ...]:
    if where.num_stages > len(profile.layers):
        raise SynthError(
            f"{where.num_stages} stages need as many layers, and {profile.name} has "
            f"{len(profile.layers)}; give fewer ranks or stages per rank"
        )
    until = monotonic() + _PARTITION_S
    return balance(
        profile, where, caps, setting.micro_batches, should_stop=lambda: monotonic() > until
    )


@lru_cache
def choices(placed: str, ranks: int, num_layers: int) -> list[dict[str, Any]]:
    """Return the published schedules to choose from, by placement.

    Args:
        placed: the name of a placement, or auto for all.

    Raises:
        SynthError: there is no such placement.
    """
    if named_stages("linear" if placed == "auto" else placed, ranks) > num_layers:
        if placed != "auto":
            placement(placed, 1)  # refuses names that are not known
        return []
    if placed == "auto":
        places = {**usual(ranks), **placements_for(ranks, num_layers)}
    else:
        places = {placed: placement(placed, ranks)}
    found = []
    seen: set[str] = set()
    for name, where in places.items():
        fits = where.num_stages <= num_layers
        names = [each for each in names_on(where) if fits and each not in seen]
        seen.update(names)
        if names:
            found.append({"placement": name, "schedules": sorted(names)})
    return found
