"""The work of `synth calibrate`."""

from pathlib import Path

from synth.cli.answer.output import Format, answer, answer_json, talk
from synth.cli.calibrate import CalibrateRequest
from synth.estimates.calibrate import calibrate, program_of, representative, runs_of, unread_columns
from synth.estimates.calibration import Calibration
from synth.estimates.device import device_of
from synth.estimates.fit import StepParts
from synth.units import format_us


def work(request: CalibrateRequest) -> None:
    request.check_files(request.runs)
    device = device_of(request.device)
    software = program_of(request.runs, request.software)
    runs = runs_of(request.runs, request.device, software, request.model)
    path = Path(request.runs)
    if path.is_file() and path.suffix.lower() != ".json" and (unread := unread_columns(path)):
        talk(f"warning: {path} has columns that are not read: {', '.join(unread)}")
    if request.rows is not None and request.rows < len(runs):
        chosen = representative([StepParts(run) for run in runs], request.rows)
        runs = [row.run for row in chosen]
    found = calibrate(runs, device.name, software, request.runs)
    if request.output is not None:
        found.save(request.output)
    if request.format == Format.JSON:
        answer_json(found.to_data())
    else:
        answer(_as_text(found))
    if request.output is None:
        talk("not saved: give -o calibration.json")
    else:
        talk(f"written: {request.output}; `synth estimate … --calibration {request.output}`")


def _as_text(found: Calibration) -> str:
    """Return a table of the factors, and one of the residuals."""
    lines = [f"{found.software} on {found.device}, fitted to {found.source}", ""]
    lines.append("factor           value  uncertainty  share of time")
    for name in ("matmul", "memory", "communication"):
        factor = getattr(found, name)
        lines.append(
            f"{name:13s}{factor.value:9.3f}{100 * factor.uncertainty:11.0f} %"
            f"{100 * factor.share:13.0f} %"
        )
    lines += ["", "run                                measured   before    after"]
    lines += [
        f"{row.row:30.30s}{format_us(row.measured_us):>13s} {100 * row.before:+7.1f}"
        f" {100 * row.after:+7.1f} %"
        for row in found.residuals
    ]
    return "\n".join(lines)
