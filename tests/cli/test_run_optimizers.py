"""`synth run` with another optimizer than was profiled, and with steps validated late."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from synth.families import generate
from synth.profile.links import Link, Links
from synth.profile.optimizer import OptimizerSpec
from synth.profile.workload import Workload
from synth.runtime.profiling.profile_model import profile_model
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import lower
from synth.schedule.simulate import simulate
from tests.cli.conftest import TINY, Ended, Synth


def make_plan(folder: Path, *, roomy: bool = True, **workload: object) -> Path:
    """ZB-H1 of a tiny GPT on two ranks; not roomy: with caps that leave nothing over."""
    found = Workload(model="gpt", arguments=TINY, micro_batch_size=2, sequence_length=32)
    links = Links(default=Link(latency_us=50.0))
    profile = profile_model(
        found.replace(**workload), torch.device("cpu"), warmup=1, iterations=3, links=links
    )
    plan = Plan.of(profile, [3, 3], generate("zb-h1", 2, 4))
    caps = None if roomy else plan.claim.peak_bytes
    path = folder / "plan.json"
    plan.replace(caps_bytes=caps).save(path)
    return path


@pytest.fixture(scope="module")
def plan_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_plan(tmp_path_factory.mktemp("plan"), roomy=False)


class Run:
    """Runs plans on the text for six steps, with ranks that are there already."""

    def __init__(self, synth: Synth, text: Path) -> None:
        self._synth, self._text = synth, text

    def __call__(self, plan: Path, *options: str) -> Ended:
        common = ("--data", self._text, "--device", "cpu", "--steps", 6, "--format", "json")
        return self._synth("run", plan, *common, *options)

    def figures(self, plan: Path, *options: str) -> dict[str, Any]:
        ended = self(plan, *options)
        assert ended.code == 0, ended.stderr
        found: dict[str, Any] = json.loads(ended.stdout)
        comparison = found["comparison"]
        for predicted, measured in zip(
            comparison["predicted_peak_bytes"], comparison["measured_peak_bytes"], strict=True
        ):
            assert measured <= predicted
        return found


@pytest.fixture
def run(synth_on_pool: Synth, text: Path) -> Run:
    return Run(synth_on_pool, text)


def test_a_copy_of_the_parameters_that_the_caps_do_not_hold_is_refused(
    run: Run, plan_path: Path
) -> None:
    ended = run(plan_path, "--post-validation")
    assert ended.code != 0
    assert "needs" in ended.stderr and "limit is" in ended.stderr
    assert "adamw+post-validation" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("clip", ["0", "0.01"])
def test_late_validation_gives_the_same_losses_and_pays_the_period(
    run: Run, tmp_path: Path, clip: str
) -> None:
    plan = make_plan(tmp_path)
    waiting = run.figures(plan, "--clip", clip)
    late = run.figures(plan, "--clip", clip, "--post-validation")
    assert late["losses"] == waiting["losses"]
    assert len(late["losses"]) == 6
    assert waiting["comparison"]["paid"] == "makespan"
    assert late["comparison"]["paid"] == "period"
    loaded = Plan.load(plan)
    apart = lower(loaded.schedule(), loaded.costs)
    together = lower(loaded.schedule(), loaded.costs, synchronous_step=True)
    assert late["comparison"]["predicted_us"] == simulate(apart).period_us
    assert waiting["comparison"]["predicted_us"] == simulate(together).makespan_us


def test_a_profile_made_for_late_validation_and_master_weights_counts_what_they_take(
    run: Run, tmp_path: Path
) -> None:
    spec = OptimizerSpec(master_weights=True, post_validation=True)
    plan = make_plan(tmp_path, roomy=False, dtype="bfloat16", optimizer=spec)
    assert Plan.load(plan).workload.optimizer == spec
    assert run.figures(plan, "--clip", "0.01")["comparison"]["paid"] == "period"


@pytest.mark.slow
def test_float32_gradients_are_counted_and_used(run: Run, tmp_path: Path) -> None:
    narrow = OptimizerSpec(master_weights=True)
    static = {}
    for spec in (narrow, narrow.replace(float32_gradients=True)):
        folder = tmp_path / str(spec)
        folder.mkdir()
        path = make_plan(folder, roomy=False, dtype="bfloat16", optimizer=spec)
        assert len(run.figures(path)["losses"]) == 6
        static[spec] = [costs.static_bytes for costs in Plan.load(path).costs.stages]
    kept, widened = static.values()
    assert all(more > less for more, less in zip(widened, kept, strict=True))


def test_another_optimizer_that_takes_less_runs_under_the_same_caps(
    run: Run, plan_path: Path
) -> None:
    assert len(run.figures(plan_path, "--optimizer", "sgd:0.9")["losses"]) == 6


@pytest.mark.slow
def test_weight_decay_and_betas_are_those_asked_for(run: Run, plan_path: Path) -> None:
    """The first loss is before any step; Adam's first step is the same with any betas."""
    plain = run.figures(plan_path)["losses"]
    asked = (("--betas", "0.5,0.9"), ("--weight-decay", "20"), ("--betas", "0.9,0.999"))
    of_betas, decayed, usual = (run.figures(plan_path, *options)["losses"] for options in asked)
    assert usual == plain
    assert of_betas[:2] == pytest.approx(plain[:2], rel=1e-6) and of_betas[2:] != plain[2:]
    assert decayed[0] == plain[0] and decayed[1] != pytest.approx(plain[1], rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--betas", "0.9"), "--betas '0.9' is not understood"),
        (("--betas", "0.9,1"), "--betas '0.9,1' is not understood"),
        (("--betas", "0.9,nan"), "--betas '0.9,nan' is not understood"),
        (("--betas", "0.9,0.95", "--optimizer", "sgd"), "--betas are of adamw, and the optimizer"),
    ],
)
def test_betas_that_are_none_are_refused(
    run: Run, plan_path: Path, options: tuple[str, ...], message: str
) -> None:
    ended = run(plan_path, *options)
    assert ended.code == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
