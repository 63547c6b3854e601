"""What the page saves: plans, files of other runtimes, pictures and profiles, as downloads."""

import base64
from enum import StrEnum
from typing import Any

from synth.errors import SynthError
from synth.interop.export_format import ExportFormat
from synth.interop.exported import exported_texts, losses
from synth.profile import Profile
from synth.report.chart.chart import Chart
from synth.report.picture.formats import png_bytes
from synth.report.picture.schedule import schedule_picture
from synth.system.extras import require
from synth.ui.drawing import DrawnSchedule


class Download(StrEnum):
    """A kind of file that the page saves."""

    PLAN = "plan"
    PROFILE = "profile"
    CSV = "csv"
    TORCHTITAN = "torchtitan"
    MEGATRON = "megatron"
    PNG = "png"


# The names of the files of other runtimes; of two the first names the second.
_FORMATS = {
    Download.CSV: (ExportFormat.TORCH, ("plan.csv", "plan.stages.csv")),
    Download.TORCHTITAN: (ExportFormat.TORCHTITAN, ("plan.toml", "plan.csv")),
    Download.MEGATRON: (ExportFormat.MEGATRON, ("megatron-layout.txt",)),
}


def download(drawn: DrawnSchedule, kind: Download) -> dict[str, Any]:
    """Return the files of a schedule, in base64, and notes on what they do not say.

    Raises:
        SynthError: the format cannot say what the plan does, or a package is missing.
    """
    files = _files_of(drawn, kind)
    notes = [f"memory: {drawn.exceeds}."] if drawn.exceeds else []
    return {**files, "notes": [*notes, *files["notes"]]}


def _files_of(drawn: DrawnSchedule, kind: Download) -> dict[str, Any]:
    plan = drawn.plan
    if kind == Download.PLAN:
        return _files({"plan.json": plan.to_json()})
    if kind == Download.PNG:
        require("picture", ("reportlab", "pypdfium2"), "a PNG needs")
        chart = Chart.planned(plan.name, plan, drawn.timeline)
        return _files({"plan.png": png_bytes(schedule_picture(plan.name, [chart]))})
    if kind not in _FORMATS:
        raise SynthError(f"{kind} is no file of a schedule; give another kind")
    to, names = _FORMATS[kind]
    texts = exported_texts(plan, to, {}, *names[1:])
    notes = [note.removeprefix("note: ") for note in losses(plan, "the plan", to, {})]
    return _files(dict(zip(names, texts, strict=True)), notes)


def profile_download(profile: Profile) -> dict[str, Any]:
    """Return the file of a profile, in base64."""
    return _files({"profile.json": profile.to_json()})


def _files(contents: dict[str, str | bytes], notes: list[str] | None = None) -> dict[str, Any]:
    return {
        "files": [
            {"name": name, "data": base64.b64encode(data).decode("ascii")}
            for name, text in contents.items()
            for data in [text.encode() if isinstance(text, str) else text]
        ],
        "notes": notes or [],
    }
