"""`synth calibrate`: the factors that explain measured rows, with what is left unexplained."""

import csv
import datetime
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from synth.errors import SynthError
from synth.estimates.calibration import Calibration, Residual
from synth.estimates.device import device_of
from synth.estimates.estimated_profile import Estimator
from synth.estimates.factors import PRIOR, SCATTER_OF_EXPERTS, Factors, software_of
from synth.estimates.fit import ROW, StepParts, are_dense, fit
from synth.estimates.layout import Layout, Sharding
from synth.estimates.model_config import model_of
from synth.estimates.published import PROGRAM, PublishedRun, published_runs, run_of
from synth.estimates.rates import read_table
from synth.estimates.training_step import TrainingStep
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.estimate import Factor
from synth.records.safe_read import read_text

MOST_ROWS = 100

# The training program of rows that do not say theirs.
PROGRAM_OF_OWN = "megatron"


def calibrate(runs: Sequence[PublishedRun], device: str, software: str, source: str) -> Calibration:
    """Fit the factors of a device and a training program.

    Args:
        runs: the measured steps.
        source: what the runs are from, for display.

    Raises:
        SynthError: there are no runs or too many, or one cannot be estimated.
    """
    if not 1 <= len(runs) <= MOST_ROWS:
        raise SynthError(f"{len(runs)} rows to calibrate with; give 1 to {MOST_ROWS}")
    rows = [StepParts(run) for run in runs]
    factors = fit(rows)
    # The critical path may be another one at the fitted factors.
    rows = [StepParts(row.run, factors) for row in rows]
    factors = fit(rows)
    shares = np.sum([row.parts_us * factors.values for row in rows], axis=0)
    shares = shares / (shares.sum() + sum(row.fixed_us for row in rows))
    fitted = [
        Factor(value=round(value, 6), uncertainty=round(deviation, 4), share=round(share, 4))
        for value, deviation, share in zip(
            factors.values, factors.deviations, shares.tolist(), strict=True
        )
    ]
    return Calibration(
        device=device,
        software=software,
        source=source,
        date=datetime.date.today().isoformat(),
        matmul=fitted[0],
        memory=fitted[1],
        communication=fitted[2],
        scatter=round(factors.scatter, 4),
        residuals=tuple(
            Residual(
                row=row.run.name,
                measured_us=round(row.run.measured_us, 3),
                before=round(row.error(Factors()), 4),
                after=round(row.error(factors), 4),
            )
            for row in rows
        ),
    )


def runs_of(given: str, device: str, software: str, model: str | None) -> list[PublishedRun]:
    """Return the runs of a CSV file, of a measured profile, or of a source of published ones.

    Args:
        given: the path of a CSV or of a profile, or the name of a source.
        device: the device of all rows.
        software: their training program.
        model: the model of a profile; a CSV names it in each row.

    Raises:
        SynthError: it is none of them, or a row is wrong.
    """
    device = device_of(device).name
    path = Path(given)
    if path.suffix.lower() == ".json" and path.is_file():
        return [_run_of_profile(Profile.load(path), device, software, model)]
    if path.is_file():
        runs = []
        for number, row in enumerate(_rows(path), 1):
            try:
                _check_same("device", device, row.get("device"))
                _check_same("software", software, row.get("software"))
                filled = {"precision": "bf16", **row}
                runs.append(run_of({**filled, "device": device, "software": software}))
            except SynthError as error:
                raise SynthError(f"{path}, row {number}: {error}") from None
        return runs
    found = [run for run in published_runs() if (run.stack, run.device) == (given, device)]
    if not found:
        known = sorted({run.stack for run in published_runs()})
        raise SynthError(
            f"{given!r:.60} is no file, and no published runs on {device} have this name; give a "
            f"CSV of runs, a profile, or one of {', '.join(known)}"
        )
    return found


def program_of(given: str, software: str | None) -> str:
    """Return the training program of the runs: that of a published source, or the given one.

    Raises:
        SynthError: the runs of a source are of another program than the given one.
    """
    stacks = {run.stack for run in published_runs()}
    if Path(given).is_file() or given not in stacks:
        return software or PROGRAM_OF_OWN
    own = PROGRAM.get(given, PROGRAM_OF_OWN)
    if software not in (None, own):
        raise SynthError(
            f"the runs of {given} are of {own}, not of {software:.40}; leave the software out"
        )
    return own


def unread_columns(path: Path) -> list[str]:
    """Return the columns of a CSV of runs that have no meaning here, such as notes or typos."""
    known = read_table("published.csv")[0].keys() | {"software"}
    return [name for name in _header_and_rows(path)[0] if name not in known]


def _rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV of runs, without empty values.

    Raises:
        SynthError: a column is there twice, or a row has more values than there are columns.
    """
    header, rows = _header_and_rows(path)
    twice = next((name for place, name in enumerate(header) if name in header[:place]), None)
    if twice is not None:
        raise SynthError(f"{path} has the column {twice} twice; give it once")
    for number, row in enumerate(rows, 1):
        if len(row) > len(header):
            raise SynthError(
                f"{path}, row {number}: {len(row)} values, and {len(header)} columns; quote values "
                f"with commas"
            )
    return [{name: text for name, text in zip(header, row, strict=False) if text} for row in rows]


def _header_and_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    text = io.StringIO(read_text(path, "a CSV file of runs"))
    lines = [[each.strip() for each in line] for line in csv.reader(text, skipinitialspace=True)]
    header, *rows = [line for line in lines if any(line)] or [[]]
    return header, rows


def _check_same(what: str, asked: str, of_row: str | None) -> None:
    """Check that a row is of the device, or the training program, that was asked for."""
    if of_row is not None and of_row.lower() != asked:
        raise SynthError(
            f"a row of runs has {what} {of_row!r:.40}, and --{what} is {asked}; leave the row out, "
            f"or give --{what} {of_row:.40}"
        )


def representative(rows: Sequence[StepParts], count: int) -> list[StepParts]:
    """Choose the rows from which all rows are predicted best, one after the other.

    Measured times do not matter for the choice. Each next row makes the mean variance of the
    predicted times, with the prior's, as small as it can be (I-optimal design; Fedorov 1972).
    """
    deviation = ROW if are_dense(rows) else SCATTER_OF_EXPERTS
    system = np.diag(np.array(PRIOR) ** -2) * deviation**2
    every = np.array([_shares(row) for row in rows])
    left, chosen = list(rows), []
    for _ in range(min(count, len(left))):
        systems = [system + np.outer(_shares(row), _shares(row)) for row in left]
        variances = [np.sum(every @ np.linalg.inv(one) * every) for one in systems]
        best = int(np.argmin(variances))
        system = systems[best]
        chosen.append(left.pop(best))
    return chosen


def _shares(row: StepParts) -> npt.NDArray[np.float64]:
    """Of the parts in the time of a step."""
    shares: npt.NDArray[np.float64] = row.parts_us / (row.fixed_us + row.parts_us.sum())
    return shares


def _run_of_profile(
    profile: Profile, device: str, software: str, model: str | None
) -> PublishedRun:
    """Return a measured profile as a step of one micro-batch on one rank."""
    if model is None:
        raise SynthError(f"{profile.name} is a profile; give --model, whose layers it has")
    if profile.provenance.estimate is not None:
        raise SynthError(f"{profile.name} is estimated itself; give a measured profile")
    work = profile.workload
    if work.dtype != "bfloat16":
        raise SynthError(f"{profile.name} is of {work.dtype}; give a profile of bfloat16")
    if work.recomputed_layers:
        raise SynthError(f"{profile.name} recomputes layers; give a profile that recomputes none")
    layout = Layout(
        seq_len=work.sequence_length,
        micro_batch_size=work.micro_batch_size,
        sharding=Sharding.NONE,
    )
    estimator = Estimator(
        model_of(model),
        device_of(device),
        layout,
        software_of(software),
        optimizer=work.optimizer,
    )
    passes = (OpKind.F, OpKind.BW, OpKind.STEP)
    layers = [profile.layer_profile(place) for place in range(len(profile.layers))]
    measured = sum(layer.time_us[kind].median_us for layer in layers for kind in passes)
    return PublishedRun(
        name=profile.name,
        stack="profile",
        device=device,
        dense=estimator.shape.experts is None,
        step=TrainingStep(estimator, 1, 1),
        measured_us=measured,
        tokens_per_s=work.tokens / measured * 1e6,
    )
