"""Profiles of real blocks, and plans of them rehearsed: memory and times against the prediction."""

from pathlib import Path
from typing import Any

import torch

import synth
from benchmarks.gpu.step import Where
from synth.families import generate
from synth.plan.partition.balance import balance
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.profile.optimizer import OptimizerSpec
from synth.profile.workload import Workload
from synth.report.explain.rehearsal import RehearsedRank, rehearsed_run
from synth.report.explain.run_against_plan import compare
from synth.run_options.train_options import TrainOptions
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.rehearsal import rehearse
from synth.schedule.files.plan_file import Plan

_NVLINK = Links(default=Link(latency_us=10.0, bandwidth_bytes_per_s=200e9))
_MOE = f"{Path(__file__).with_name('moe_model.py')}:layers"
_RANKS, _MICRO_BATCHES = 4, 8


def llama(where: Where) -> Profile:
    """The profile of a Llama of one billion parameters, of equal blocks."""
    sizes = {
        "vocabulary_size": where.pick(256, 32000),
        "width": where.pick(64, 2048),
        "num_blocks": where.pick(6, 16),
        "num_heads": where.pick(4, 32),
        "num_kv_heads": where.pick(2, 8),
        "hidden_width": where.pick(128, 8192),
        "context_length": where.pick(32, 2048),
    }
    return _profiled(where, Workload(
        model="llama", arguments=sizes, micro_batch_size=where.pick(1, 2),
        sequence_length=sizes["context_length"], dtype=where.pick("float32", "bfloat16"),
        optimizer=OptimizerSpec.parse("adamw"),
    ))  # fmt: skip


def profiles(where: Where) -> dict[str, Any]:
    """Profile a Llama and a mixture of experts twice each; the largest change of a time of 1 ms."""
    moe = Workload(
        model=_MOE,
        arguments={"width": where.pick(64, 2048), "experts": 8, "blocks": 2},
        micro_batch_size=where.pick(1, 2),
        sequence_length=where.pick(32, 2048),
        dtype=where.pick("float32", "bfloat16"),
        optimizer=OptimizerSpec.parse("adamw"),
    )
    found: dict[str, Any] = {}
    makes = {"llama": lambda: llama(where), "moe": lambda: _profiled(where, moe)}
    for name, make in makes.items():
        first, second = make(), make()
        index = 1  # the first block
        block, again = first.layer_profile(index), second.layer_profile(index)
        times = {str(kind): timing.median_us for kind, timing in block.time_us.items()}
        changes = [
            abs(again.time_us[kind].median_us / timing.median_us - 1)
            for kind, timing in block.time_us.items()
            if timing.median_us >= 1000
        ]
        found[name] = {
            "block_us": times,
            "saved_bytes": block.saved_bytes,
            "waits_for_w": block.deferred_share,
            "largest_change": max(changes, default=0.0),
        }
    return found


def rehearsals(where: Where) -> dict[str, Any]:
    """Rehearse every rank of four plans; the last fits in 0.8 of what 1F1B takes."""
    profile = llama(where)
    found = []
    for plan in _plans(profile, where):
        lowered = plan.check()[0]
        options = TrainOptions(steps=where.pick(3, 5), device=where.device)
        results = rehearse(plan, lowered, options, torch.device(where.device))
        ranks = {
            rank: RehearsedRank(
                [seen.log.ops for seen in result.traced],
                result.peak_bytes, result.extra_bytes, result.reserved_bytes,
            )
            for rank, result in results.items()
        }  # fmt: skip
        run = compare(plan, lowered, rehearsed_run(plan, lowered, ranks))
        off = {
            f"{op.kind}{op.stage}": op.measured_us / op.profiled_us
            for op in run.ops
            if op.profiled_us
        }
        found.append({
            "plan": plan.name,
            "predicted_us": run.predicted_us,
            "rehearsed_us": run.measured_us,
            "peak_over_planned": [
                result.peak_bytes / planned
                for result, planned in zip(
                    results.values(), run.predicted_peak_bytes, strict=True
                )
            ],
            "reserved_over_peak": [
                result.reserved_bytes and result.reserved_bytes / result.peak_bytes
                for result in results.values()
            ],
            "op_over_profile": [min(off.values()), max(off.values())],
        })  # fmt: skip
    return {"plans": found}


def _profiled(where: Where, workload: Workload) -> Profile:
    iterations = where.pick(1, 10)
    return profile_model(
        workload, torch.device(where.device), warmup=where.pick(1, 3), iterations=iterations,
        links=_NVLINK,
    )  # fmt: skip


def _plans(profile: Profile, where: Where) -> list[Plan]:
    plans = []
    for name in ("1f1b", "zb-h1", "zb-v"):
        schedule = generate(name, _RANKS, _MICRO_BATCHES)
        plans.append(Plan.of(profile, balance(profile, schedule.placement), schedule))
    limit_bytes = max(plans[0].claim.peak_bytes) * 8 // 10
    solved = synth.solve(
        profile, ranks=_RANKS, micro_batches=_MICRO_BATCHES, mem_limit=limit_bytes,
        time_limit=where.pick(3, 15),
    )  # fmt: skip
    return [*plans, solved]
