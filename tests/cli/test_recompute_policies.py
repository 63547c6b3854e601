"""Policies of recomputation, from the profile to the run."""

import json
from pathlib import Path

import pytest

from synth.profile import Profile
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import Synth

TINY = ("width=32", "num_blocks=4", "num_heads=2", "vocabulary_size=256", "context_length=16")
POLICY = """
import torch


def products(context, op, *args, **kwargs):
    return op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
"""
SOLVE = ("--ranks", "2", "--micro-batches", "4", "--placement", "linear", "--time-limit", "1s")
LAYERS = ("--partition", "3,3")


@pytest.fixture
def files(synth: Synth, tmp_path: Path) -> tuple[Path, Path]:
    """A profile with the policy `ops` and one of a user's file, and a plan with both."""
    pytest.importorskip("torch")
    profile, plan, policy = tmp_path / "profile.json", tmp_path / "plan.json", tmp_path / "own.py"
    policy.write_text(POLICY)
    mine = f"{policy}:products"
    arguments = [word for each in TINY for word in ("--arg", each)]
    sizes = ("--seq-len", "16", "--iters", "1", "--warmup", "0")
    policies = ("--recompute-policy", "ops", "--recompute-policy", mine)
    ended = synth("profile", "llama", *arguments, *sizes, *policies, "-o", profile)
    assert ended.code == 0 and "  under ops: F + B + W +" in ended.stdout
    listed = f"ops:1-2; {mine}:3; layers:4"
    ended = synth("solve", profile, *SOLVE, *LAYERS, "--recompute", listed, "-o", plan)
    assert ended.code == 0 and f"recomputed: layers 1–2 (ops), 3 ({mine}), 4 in B" in ended.stdout
    return profile, plan


@pytest.mark.slow
def test_a_plan_says_the_policy_of_each_layer_wherever_it_is_shown(
    synth: Synth, files: tuple[Path, Path]
) -> None:
    profile, plan = files
    made, mine = (
        Plan.load(plan),
        next(reversed(Profile.load(profile).layer_profiles["block.0"].variants)),
    )
    assert made.recompute_policies == {"ops": (1, 2), mine: (3,)}
    assert made.recomputed_layers == (1, 2, 3, 4)
    shown = synth("show", plan)
    assert "1–2 (ops)" in shown.stdout
    told = json.loads(synth("show", plan, "--format", "json").stdout)
    assert told["recompute_policies"] == {"ops": [1, 2], mine: [3]}
    checked = synth("check", plan, "--profile", profile)
    assert checked.code == 0 and "the costs of every stage are those of profile" in checked.stdout
    explained = synth("explain", plan, "--profile", profile)
    assert explained.code == 0 and "one layer less recomputed" in explained.stdout
    assert "recomputes layers 1–2 (ops), 3 (" in synth("export", plan).stderr
    begun = synth("solve", profile, *SOLVE, "--hint", plan, "--dry-run")
    assert f"--recompute 'ops:1-2; {mine}:3; layers:4' recomputes them" in begun.stderr


@pytest.mark.slow
def test_a_users_policy_is_imported_only_if_trusted(
    synth_on_pool: Synth, files: tuple[Path, Path], text: Path
) -> None:
    command = ("run", files[1], "--steps", "1", "--data", text)
    refused = synth_on_pool(*command)
    assert refused.code == 2 and "give --trust to import what the plan names" in refused.stderr
    ended = synth_on_pool(*command, "--trust")
    assert ended.code == 0 and "own.py:products, as the plan names it" in ended.stderr


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("some", "there is no policy 'some'; give selective, ops, or FILE.py:FUNCTION"),
        ("full", "the policy full needs no measurement; leave it out"),
        ("absent.py:mine", "absent.py"),
    ],
)
def test_what_is_no_policy_is_refused(synth: Synth, tmp_path: Path, policy: str, why: str) -> None:
    pytest.importorskip("torch")
    output = tmp_path / "profile.json"
    ended = synth("profile", "gpt", "--recompute-policy", policy, "-o", output)
    assert ended.code == 2 and why in ended.stderr and not output.exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ops:1-2", "a policy that the profile has measured (it has none)"),
        ("layers:1-2; layers:2", "lists layer 2 twice"),
    ],
)
def test_policies_that_the_profile_lacks_are_refused(synth: Synth, text: str, why: str) -> None:
    ended = synth("solve", "zb-1.5b-p8-m24", *SOLVE, "--recompute", text)
    assert ended.code == 2 and why in ended.stderr
