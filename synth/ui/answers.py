"""The answers of the server: the models, schedules that are drawn at once, and downloads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from synth.errors import SynthError
from synth.estimates.device import devices
from synth.plan.explain.explanation import Explanation, explain_schedule
from synth.profile import Profile
from synth.report.html.page import viewer_data
from synth.ui.command_line import commands, curve_commands
from synth.ui.drawing import Drawings, DrawnSchedule, NotDrawn, choices
from synth.ui.exports import Download, download, profile_download
from synth.ui.limits import MOST_LAYERS
from synth.ui.models import Models
from synth.ui.requests import DrawRequest, OpenRequest, SaveRequest, ScheduleRequest
from synth.ui.setting import PipelineSetting, ShownSchedule
from synth.version import __version__

# Ranks of the schedules to choose from where the setting cannot be drawn.
_FEW_RANKS = 8


@dataclass(frozen=True)
class FirstShown:
    """The name in `Models` of what the page shows first, and the kind of that file."""

    kind: str = "profile"
    name: str | None = None


def _first_pipeline(profile: Profile) -> dict[str, Any]:
    """Return the ranks and the lower schedule with which the page shows a profile first.

    The ranks are those whose links were measured, or the largest power of two, up to `_FEW_RANKS`,
    with two layers each. ZB-V has two stages per rank.
    """
    layers = len(profile.layers)
    ranks = max((max(link.source, link.target) + 1 for link in profile.links.pairs), default=0)
    if not 1 < ranks <= layers:
        ranks = min(_FEW_RANKS, 1 << max(1, layers // 2).bit_length() - 1)
    return {"ranks": ranks, "lower": "zb-v" if 2 * ranks <= layers else "zb-h1"}


class Answers:
    """The answers to the page's questions about models, plans and drawn schedules."""

    def __init__(
        self,
        models: Models,
        explained: Callable[[Explanation], str],
        opened: FirstShown | None = None,
    ) -> None:
        """Answer for some models.

        Args:
            models: with the limits of requests.
            explained: returns an explanation as text.
            opened: shown first; None: the page's own choice.
        """
        self._models, self._limits = models, models.limits
        self._explained, self._opened = explained, opened or FirstShown()
        self.drawings = Drawings(models, self._limits)

    def first(self, running: str | None) -> dict[str, Any]:
        """Return what the page needs at first, and the search that runs."""
        return {
            "version": __version__,
            "viewer": viewer_data(),
            "models": self._models.listed(),
            "devices": [device.name for device in devices()],
            "opened": self._first_shown(),
            "job": running,
            "limits": {
                "is_public": self._limits.is_public,
                "search_s": self._limits.search_s,
                "points": self._limits.most_points,
            },
        }

    def _first_shown(self) -> dict[str, Any]:
        kind, name = self._opened.kind, self._opened.name
        if name is not None and kind == "plan":
            return self._about_plan(name)
        if name is None or kind != "profile":
            return {"kind": kind, "name": name}
        profile = self._models.profile(PipelineSetting(model=name))
        return {"kind": kind, "name": name, "pipeline": _first_pipeline(profile)}

    def _about_plan(self, name: str) -> dict[str, Any]:
        """Return the setting that a plan was found for, as far as the page has it."""
        plan = self._models.plan(name)
        return {
            "kind": "plan",
            "name": name,
            "profile": self._models.model_of(plan),
            "ranks": plan.num_ranks,
            "micro_batches": plan.num_micro_batches,
            "cap_bytes": None if plan.caps_bytes is None else max(plan.caps_bytes),
        }

    def draw(self, given: DrawRequest) -> dict[str, Any]:
        """Draw; a setting that cannot be drawn has the schedules to choose from all the same."""
        try:
            return self._drawn(given)
        except SynthError as error:
            ranks = min(_FEW_RANKS, given.setting.ranks)
            raise NotDrawn(one_line(error), choices("auto", ranks, MOST_LAYERS)) from None

    def _drawn(self, given: DrawRequest) -> dict[str, Any]:
        setting = given.setting
        setting.check_size(self._limits)
        profile = self.drawings.profile(setting)
        drawn = [self._one(setting, source, given.is_quick) for source in given.sources[:2]]
        limit = setting.arguments(profile, self._limits).memory.limits(setting.ranks, profile)
        return {
            "drawn": drawn,
            "choices": choices(setting.placement, setting.ranks, len(profile.layers)),
            "layers": [
                [layer.name, profile.layer_profile(place).work_us()]
                for place, layer in enumerate(profile.layers)
            ],
            "about": _about(profile),
            "limit": limit.explanation,
            "cap_bytes": None if limit.caps_bytes is None else max(limit.caps_bytes),
            "commands": {
                "solve": commands(setting, self._limits),
                "curve": curve_commands(setting, self._limits, given.points),
                "schedules": [
                    commands(setting, self._limits, source) for source in given.sources[:2]
                ],
            },
        }

    def _one(
        self, setting: PipelineSetting, source: ShownSchedule, is_quick: bool
    ) -> dict[str, Any]:
        try:
            if is_quick and self.drawings.takes_long(setting, source):
                return {"name": source.schedule, "waits": True}
            drawn = self.drawings.of(setting, source)
            given = source.plan is not None
            differs = self.drawings.differs(setting, drawn.plan) if given else ""
            return {**drawn.data(), "differs": differs}
        except SynthError as error:
            return {"error": one_line(error)}

    def explain(self, given: ScheduleRequest) -> dict[str, Any]:
        drawn = self.drawings.of(given.setting, given.source)
        return {"text": self.text(drawn, explain_schedule(drawn.plan, drawn.timeline))}

    def text(self, drawn: DrawnSchedule, found: Explanation) -> str:
        """Return an explanation, below the limit that the schedule exceeds."""
        above = f"memory: {drawn.exceeds}\n\n" if drawn.exceeds else ""
        return above + self._explained(found)

    def export(self, given: SaveRequest) -> dict[str, Any]:
        if given.kind == Download.PROFILE:
            return profile_download(self.drawings.profile(given.setting))
        return download(self.drawings.of(given.setting, given.source), given.kind)

    def open(self, given: OpenRequest) -> dict[str, Any]:
        """Open a file whose text the page sends."""
        kind, name = self._models.open(given.text)
        return self._about_plan(name) if kind == "plan" else {"kind": kind, "name": name}


def _about(profile: Profile) -> str:
    """Return what is to be known of a profile: its origin, how far it is off, and its sizes."""
    origin, workload = profile.provenance, profile.workload
    device = "" if origin.device == "unknown" else f", {origin.device}"
    words = [f"{origin.source}{device}" if origin.estimate is None else origin.estimate.words]
    if workload.sequence_length > 1:
        size = f"{workload.micro_batch_size} × {workload.sequence_length:,}"
        words.append(f"a micro-batch is {size} tokens")
    if profile.links.are_free:
        words.append("transfers take no time")
    return "; ".join(words)


def one_line(error: SynthError) -> str:
    """Return the message of an error in one line."""
    return " ".join(str(error).split())
