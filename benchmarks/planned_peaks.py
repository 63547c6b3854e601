"""Planned peaks of memory beside those of every rank, where layers share memory.

    python -m benchmarks.planned_peaks [MODEL…]

Each model of `planned_peaks_models` is profiled on the CPU, and every rank of each schedule is
rehearsed: it runs all its ops with the executor. A row has the least and the largest difference of
the planned peak from the measured one, over all ranks and 1, 2 and 4 micro-batches; the last column
has the median of all of the row. `layers again` recomputes all inner layers within B, and `R` all
stages.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch

from benchmarks import planned_peaks_models
from synth.costs.recomputed_layers import policies_of
from synth.errors import SynthError
from synth.families import generate
from synth.profile import Profile
from synth.profile.workload import Workload
from synth.run_options.train_options import TrainOptions
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.rehearsal import rehearse
from synth.schedule.files.plan_file import Plan

CPU = torch.device("cpu")
MODELS = {
    "ordinary": "batch",
    "encoder_output": "batch",
    "residual_apart": "batch",
    "mask_passed_on": "batch",
    "rotary_tables": "batch",
    "relu_in_place": "images",
    "add_in_place": "batch",
    "halves": "batch",
    "unbound": "batch",
    "views_in_place": "batch",
    "channels_last": "images",
    "turned": "batch",
    "histories": "batch",
    "prefixes": "batch",
    "lora": "batch",
}
# By column: the family, ranks, and whether the inner layers are recomputed.
SCHEDULES = {
    "1f1b, 2 ranks": ("1f1b", 2, False),
    "1f1b, 4 ranks": ("1f1b", 4, False),
    "zb-h1": ("zb-h1", 2, False),
    "zb-v": ("zb-v", 2, False),
    "interleaved": ("1f1b-interleaved:2", 2, False),
    "layers again": ("1f1b", 2, True),
    "R": ("gpipe:recompute", 2, False),
}
MICRO_BATCHES = (1, 2, 4)


def address(function: str) -> str:
    """Return the address of a function of the models' module."""
    return f"{Path(str(planned_peaks_models.__file__)).resolve()}:{function}"


def profiled(model: str) -> Profile:
    """Measure a model's layers."""
    inputs, _ = getattr(planned_peaks_models, MODELS[model])(0)
    workload = Workload(
        model=address(model),
        inputs=address(MODELS[model]),
        micro_batch_size=len(inputs),
        sequence_length=inputs.shape[1],
    )
    return profile_model(workload, CPU, warmup=0, iterations=1)


def plan_of(profile: Profile, schedule: str, num_micro_batches: int) -> Plan:
    """Return a plan on equal stages."""
    family, num_ranks, recomputes = SCHEDULES[schedule]
    made = generate(family, num_ranks, num_micro_batches)
    num_stages, num_layers = made.placement.num_stages, len(profile.layers)
    sizes = [num_layers // num_stages + (s < num_layers % num_stages) for s in range(num_stages)]
    inner = range(1, num_layers - 1) if recomputes else ()
    layers = [place for place in inner if "full" in policies_of(profile, place)]
    return Plan.of(profile, sizes, made, recomputed_layers=layers)


def differences(model: str, profile: Profile, plan: Plan) -> Iterator[float]:
    """Yield by rank the difference of the planned peak from the measured one, in percent."""
    options = TrainOptions(steps=3, model=address(model), inputs=address(MODELS[model]))
    for rank, result in rehearse(plan, plan.check()[0], options, CPU).items():
        yield 100 * (plan.claim.peak_bytes[rank] / result.peak_bytes - 1)


def row(model: str) -> list[str]:
    """Return the differences of a model under each schedule."""
    profile, cells, of_row = profiled(model), [], list[float]()
    for schedule in SCHEDULES:
        found: list[float] = []
        try:
            for count in MICRO_BATCHES:
                if count >= SCHEDULES[schedule][1] or "interleaved" not in schedule:
                    plan = plan_of(profile, schedule, count)
                    found += differences(model, profile, plan)
        except SynthError as error:
            if "in place" not in str(error):
                raise
            cells.append("refused")  # R of a stage that changes its input
            continue
        cells.append(f"{min(found):+.1f} to {max(found):+.1f} %")
        of_row += found
    return [*cells, f"{median(of_row):+.1f} %"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="one of those of the module")
    chosen = parser.parse_args().models or list(MODELS)
    torch.set_num_threads(1)
    print(f"| model | {' | '.join(SCHEDULES)} | median |")
    print("|---" * (2 + len(SCHEDULES)) + "|")
    for model in chosen:
        print(f"| {model.replace('_', ' ')} | {' | '.join(row(model))} |", flush=True)


if __name__ == "__main__":
    main()
