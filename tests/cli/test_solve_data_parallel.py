"""`synth solve --data-parallel`: the plan of all pipelines, its memory, and what is refused."""

import json
from pathlib import Path

import pytest

from synth import solve as synth_solve
from synth.errors import SynthError
from synth.plan.reason import reason_of
from synth.profile.workload import Workload
from synth.schedule.files.plan_file import Plan
from synth.schedule.weight_flow import Sharded
from tests.cli.conftest import NAME, TINY, Synth, make_run_profile

ROOT = Path(__file__).resolve().parents[2]
SOLVE = (
    *("solve", NAME, "--ranks", "4", "--micro-batches", "8", "--link", "10us,25GB/s"),
    *("--time-limit", "60s", "--gap", "80%"),
)


def test_the_plan_is_for_all_pipelines_within_a_limit_that_one_alone_exceeds(
    synth: Synth, tmp_path: Path
) -> None:
    alone, path = tmp_path / "alone.json", tmp_path / "plan.json"
    common = ("--placement", "linear", "--recompute", "none", "--partition", "even")
    assert synth(*SOLVE, *common, "-o", alone).code == 0
    solved = synth(*SOLVE, *common, "--data-parallel", "4", "-o", path, "--format", "json")
    assert solved.code == 0, solved.stderr
    one, all_of_them = Plan.load(alone), Plan.load(path)
    assert (all_of_them.num_ranks, all_of_them.num_micro_batches) == (16, 32)
    flow = all_of_them.schedule().weights
    assert flow is not None and flow.sharded == Sharded.OPTIMIZER
    assert flow.homes == tuple((s, s + 4, s + 8, s + 12) for s in range(4))
    # A rank keeps parameters, gradients and a quarter of the optimizer state.
    stage = all_of_them.costs.stages[0]
    assert stage == one.costs.stages[0]
    kept = stage.parameter_bytes + stage.gradient_bytes
    saved = (stage.static_bytes - kept) * 3 // 4
    found = json.loads(solved.stdout)
    assert found["value_us"] == all_of_them.claim.value_us >= found["lower_bound_us"]
    assert "1F1B takes" in reason_of(all_of_them, *all_of_them.check())
    proven = synth("check", path, "--prove")
    assert proven.code == 0 and "proven again for each pipeline" in " ".join(proven.stdout.split())
    limit = max(one.claim.peak_bytes) - saved // 2
    within = synth(*SOLVE, *common, "--mem-limit", f"{limit}B", "--data-parallel", "4", "-o", path)
    assert within.code == 0, within.stderr
    assert max(Plan.load(path).claim.peak_bytes) <= limit


def test_pipelines_that_share_their_state_learn_what_one_learns_from_all_micro_batches(
    synth_on_pool: Synth, text: Path, tmp_path: Path
) -> None:
    synth = synth_on_pool
    workload = Workload(model="gpt", arguments=TINY, micro_batch_size=2, sequence_length=32)
    profile = tmp_path / "profile.json"
    make_run_profile(workload).save(profile)
    losses = []
    for size in (("--micro-batches", "3", "--data-parallel", "2"), ("--micro-batches", "6")):
        plan, output = tmp_path / "plan.json", tmp_path / "run.json"
        solved = synth("solve", profile, "--ranks", "2", *size, "--time-limit", "1s", "-o", plan)
        assert solved.code == 0, solved.stderr
        given = (plan, "--data", text, "--steps", "5", "--device", "cpu", "-o", output)
        ended = synth("run", *given)
        assert ended.code == 0, ended.stderr
        losses.append(json.loads(output.read_text())["losses"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_search_of_the_sharded_state_fits_where_a_shared_optimizer_does_not(
    synth: Synth, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    solve = (
        *("solve", NAME, "--ranks", "2", "--micro-batches", "1", "--link", "10us,25GB/s"),
        *("--placement", "looped:4", "--partition", "even", "--recompute", "none"),
        *("--mem-limit", "23.8GB", "--deterministic", "--time-limit", "0.2s", "-o", path),
        *("--data-parallel", "2"),
    )
    refused = synth(*solve)
    assert refused.code == 3 and "needs 24.1 GB" in refused.stderr
    solved = synth(*solve, "--weights", "gather")
    assert solved.code == 0, solved.stderr
    plan = Plan.load(path)
    flow = plan.schedule().weights
    assert flow is not None and flow.sharded == Sharded.WEIGHTS
    assert (plan.num_ranks, plan.num_micro_batches) == (4, 2)
    assert max(plan.claim.peak_bytes) <= 23.8e9
    proven = synth("check", path, "--prove")
    assert proven.code == 0 and "proven again for each pipeline" in " ".join(proven.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--weights", "ring"), "--weights ring and --data-parallel 2 do not go together"),
        (("--weights", "gather", "--hint", "1f1b"), "--hint 1f1b and --weights gather --data-par"),
        (("--weights", "auto", "--solver", "milp"), "--solver milp and --weights auto --data-par"),
        (("--weights", "auto", "--partition", "auto"), "--partition auto and --weights auto"),
        (("--weights", "gather", "--recompute", "0,1"), "--recompute 0,1 and --weights gather"),
        (("--weights", "gather", "--placement", "bidirectional"), "2 copies of each stage and"),
        (("--mem-limit", "min", "--target", "110%"), "--target 110% and --data-parallel 2"),
        (("--placement", "bidirectional"), "with 2 copies of each stage and --data-parallel 2"),
    ],
)
def test_what_is_for_one_pipeline_is_refused(
    synth: Synth, arguments: tuple[str, ...], words: str
) -> None:
    ended = synth(*SOLVE, *arguments, "--data-parallel", "2")
    assert ended.code == 2 and words in ended.stderr and ended.stderr.count("\n") == 1


def test_no_more_pipelines_than_a_plan_can_name() -> None:
    for ranks, count, words in (
        (4, 1001, "^data_parallel=1001 is not understood; give at most 1000"),
        (66, 1000, "ask for 66,000 ranks; give at most 65,536"),
    ):
        with pytest.raises(SynthError, match=words):
            synth_solve(NAME, ranks=ranks, micro_batches=1, data_parallel=count)


def test_searched_sharding_is_as_the_notes_say(synth: Synth, tmp_path: Path) -> None:
    text = (ROOT / "notes" / "weight-passing.md").read_text("utf-8")
    command = text[text.index("synth solve zb-1.5b-p8-m24 --ranks 2") :]
    words = command[: command.index("```")].replace("\\\n", " ").split()[1:]
    solved = synth(*words, "-o", tmp_path / "plan.json", "--json")
    found = json.loads(solved.stdout)
    peak = max(Plan.load(tmp_path / "plan.json").claim.peak_bytes)
    assert (
        f"Their makespan is {found['value_us'] / 1000:.1f} ms, with a lower bound of "
        f"{found['lower_bound_us'] / 1000:.1f} ms, in {peak / 1e9:.2f} GB." in text
    )
    at = words.index("--weights")
    refused = synth(*words[:at], *words[at + 2 :])
    assert refused.code == 3 and "rank 0 needs 24.1 GB" in refused.stderr
    assert "with ZeRO-1 a rank needs 24.1 GB" in text
