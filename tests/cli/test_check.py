"""`synth check` detects changes made by hand, and reports what it cannot verify."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import synth as library
from synth.costs.partition_costs import partition_costs
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.files.certificate import Certificate, ProverName
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import NAME, Synth, of_an_earlier_synth

Change = Callable[[dict[str, Any]], object]


def spare_w(data: dict[str, Any]) -> None:
    """W of the second stage takes 1 µs less, which no figure of the plan depends on."""
    data["costs"]["stages"][1]["duration_us"]["W"] -= 1


CHANGES: dict[str, Change] = {
    "partition": lambda data: data.update(partition=[5, 7, 6, 6]),
    "workload.micro_batch_size": lambda data: data["workload"].update(micro_batch_size=2),
    "workload.dtype": lambda data: data["workload"].update(dtype="float16"),
    "caps_bytes": lambda data: data.update(caps_bytes=[10**12] * 4),
    "layers": lambda data: data["layers"].__setitem__(3, "another"),
    "claim.bound_holds_for": lambda data: data["claim"].update(bound_holds_for="all partitions"),
    "costs.stages": spare_w,
    "claim.found_by": lambda data: data["claim"].update(found_by="me"),
    "workload.model": lambda data: data["workload"].update(model="os:system"),
    "device": lambda data: data.update(device="NVIDIA H100"),
    "arguments.note": lambda data: data["arguments"].update(note="mine"),
    "profile_fingerprint": lambda data: data.update(profile_fingerprint="0" * 16),
    "fingerprint": lambda data: data["fingerprint"].update(sha256="0" * 64),
}
# These come from the profile, which is compared where a file has no fingerprint.
OF_PROFILE = (
    "partition",
    "workload.micro_batch_size",
    "workload.dtype",
    "layers",
    "costs.stages",
    "workload.model",
    "device",
)


def changed(plan_file: Path, folder: Path, change: Change, *, old: bool = False) -> Path:
    data = json.loads(plan_file.read_text())
    change(data)
    if old:
        data["schema_version"] = 2
        del data["fingerprint"]
        data.pop("flops", None)
        data["claim"].pop("certificate", None)
    path = folder / "changed.json"
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize("field", CHANGES)
def test_a_field_that_was_changed_by_hand_is_named(
    synth: Synth, plan_file: Path, tmp_path: Path, field: str
) -> None:
    ended = synth("check", changed(plan_file, tmp_path, CHANGES[field]))
    assert (ended.code, ended.stdout) == (5, "")
    assert f"its fingerprint does not fit {field};" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_file_that_only_looks_otherwise_is_unchanged(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    data = json.loads(plan_file.read_text())
    path = tmp_path / "sorted.json"
    path.write_text(json.dumps(data, sort_keys=True, ensure_ascii=False))
    assert synth("check", path).code == 0


@pytest.mark.parametrize("broken", [None, 3, "x", {}, {"sha256": 1, "parts": {}}, []])
def test_a_fingerprint_that_is_none_is_refused(
    synth: Synth, plan_file: Path, tmp_path: Path, broken: object
) -> None:
    path = changed(plan_file, tmp_path, lambda data: data.update(fingerprint=broken))
    ended = synth("check", path)
    assert (ended.code, ended.stdout) == (2, "")
    assert "is not a fingerprint" in ended.stderr


def test_of_a_plan_without_a_fingerprint_check_cannot_tell(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    ended = synth("check", changed(plan_file, tmp_path, lambda data: None, old=True))
    assert ended.code == 0
    assert "whether it was changed since it was written cannot be told" in ended.stdout
    assert "costs of every stage are those of profile" in ended.stdout


@pytest.mark.parametrize("field", OF_PROFILE)
def test_without_a_fingerprint_the_profile_tells_what_is_not_its_own(
    synth: Synth, plan_file: Path, tmp_path: Path, field: str
) -> None:
    path = changed(plan_file, tmp_path, CHANGES[field], old=True)
    for given in ((), ("--profile", NAME)):
        ended = synth("check", path, *given)
        assert (ended.code, ended.stdout) == (5, "")
        assert "the plan was changed" in ended.stderr
        assert field.split(".")[-1].removesuffix("s") in ended.stderr or field == "partition"


def test_a_profile_that_the_plan_is_not_of_is_refused_if_given_and_passed_over_if_not(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    profile = Profile.load(find(NAME))
    layers = {
        name: layer.replace(parameter_bytes=layer.parameter_bytes + 1)
        for name, layer in profile.layer_profiles.items()
    }
    other = profile.replace(layer_profiles=layers)
    other.save(tmp_path / "other.json")
    ended = synth("check", plan_file, "--profile", tmp_path / "other.json")
    assert ended.code == 5
    assert "the plan is of another profile, or was changed" in ended.stderr

    plan = Plan.of(other, [6] * 4, generate("1f1b", 4, 8))
    plan.save(tmp_path / "plan.json")
    ended = synth("check", tmp_path / "plan.json")
    assert ended.code == 0
    assert "the shipped one named zb-1.5b-p8-m24 is another; give --profile" in ended.stdout
    assert synth("check", tmp_path / "plan.json", "--profile", tmp_path / "other.json").code == 0


def test_a_plan_whose_backwards_were_thought_to_take_more_is_valid_and_says_so(
    synth: Synth, tmp_path: Path
) -> None:
    plan = Plan.of(Profile.load(find(NAME)), [6] * 4, generate("1f1b", 4, 8))
    of_an_earlier_synth(plan).save(tmp_path / "old.json")
    for given in ((), ("--profile", NAME)):
        ended = synth("check", tmp_path / "old.json", *given)
        assert ended.code == 0, ended.stderr
        assert f"those of profile {NAME} but for the memory of backwards" in ended.stdout
        assert "up to 5 MB more than by profile" in ended.stdout
    less = plan.costs.stages[0]
    rises = {**less.rise_bytes, OpKind.B: less.rise_bytes[OpKind.B] - 1}
    stages = (less.replace(rise_bytes=rises), *plan.costs.stages[1:])
    plan.replace(costs=plan.costs.replace(stages=stages)).save(tmp_path / "less.json")
    ended = synth("check", tmp_path / "less.json")
    assert ended.code == 5 and "costs of stage 0, rise_bytes, B" in ended.stderr


@pytest.mark.parametrize(
    ("field", "value"), [("profile_fingerprint", "0" * 16), ("profile_name", "another")]
)
def test_a_plan_that_names_another_profile_than_the_one_given_is_refused(
    synth: Synth, plan_file: Path, tmp_path: Path, field: str, value: str
) -> None:
    """Its fingerprint is made anew, and all costs are those of the profile."""
    path = tmp_path / "plan.json"
    Plan.load(plan_file).replace(**{field: value}).save(path)
    ended = synth("check", path, "--profile", NAME)
    assert (ended.code, ended.stdout) == (5, "")
    assert field in ended.stderr and value in ended.stderr
    ended = synth("check", path)
    assert ended.code == 0
    said = {"profile_fingerprint": "costs are the same", "profile_name": "give --profile"}
    assert said[field] in ended.stdout.split("taken on trust")[1]


def test_links_given_on_the_command_line_are_told_from_changed_ones(
    synth: Synth, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    solve = ("solve", NAME, "-r", "2", "-m", "2", "--time-limit", "1s", "-o", plan)
    assert synth(*solve, "--link", "10us,25GB/s").code == 0
    assert "costs of every stage are those of profile" in synth("check", plan).stdout
    ended = synth("check", plan, "--profile", NAME, "--link", "10us,24GB/s")
    assert ended.code == 5
    assert "links, default, bandwidth_bytes_per_s: 25000000000.0 in the plan" in ended.stderr


def test_a_bound_is_proven_again(synth: Synth, plan_file: Path) -> None:
    ended = synth("check", plan_file, "--prove", "--time-limit", "30s")
    assert ended.code == 0, ended.stderr
    assert "µs of makespan: proven again for" in ended.stdout
    assert "trust" not in ended.stdout


@pytest.fixture(scope="module")
def tight() -> Plan:
    """A plan whose bound is more than closed forms say."""
    size: dict[str, Any] = {"ranks": 4, "micro_batches": 8, "mem_limit": "30GB", "gap": 0}
    plain: dict[str, Any] = {"placement": "linear", "partition": "even", "recompute": "none"}
    plan = library.solve(NAME, **size, **plain, time_limit=20, deterministic=True)
    assert isinstance(plan, Plan)
    return plan


@pytest.fixture
def tight_plan(tight: Plan, tmp_path: Path) -> Path:
    """The file of that plan."""
    tight.save(tmp_path / "tight.json")
    return tmp_path / "tight.json"


def test_no_time_to_prove_a_bound_is_refused(synth: Synth, plan_file: Path) -> None:
    ended = synth("check", plan_file, "--prove", "--time-limit", "0")
    assert ended.code == 2 and "--time-limit 0 leaves no time to search" in ended.stderr


def test_it_is_said_what_proves_a_bound_again(synth: Synth, tight_plan: Path) -> None:
    ended = synth("check", tight_plan, "--prove")
    assert ended.code == 0, ended.stderr
    certificate = Plan.load(tight_plan).claim.certificate
    assert certificate is not None and certificate.prover != ProverName.CLOSED_FORMS
    assert f"by {certificate.words}" in ended.stdout
    ended = synth("check", tight_plan, "--prove", "--all-provers", "--format", "json")
    assert ended.code == 0, ended.stderr
    assert json.loads(ended.stdout)["bound"]["proven_from"] == "all provers"


def test_a_certificate_that_does_not_prove_the_bound_is_told_of(
    synth: Synth, tight_plan: Path
) -> None:
    """Closed forms, which say less; the bound holds all the same, so no schedule disproves it."""
    plan = Plan.load(tight_plan)
    closed = Certificate(prover=ProverName.CLOSED_FORMS)
    plan.replace(claim=plan.claim.replace(certificate=closed)).save(tight_plan)
    ended = synth("check", tight_plan, "--prove", "--time-limit", "1s", "--format", "json")
    assert ended.code == 4, ended.stderr
    found = json.loads(ended.stdout)
    assert found["bound"]["certificate_is_refuted"] is True
    assert "the certificate in the plan does not prove it" in found["on_trust"]["bound"]


@pytest.fixture
def slow_plan(tmp_path: Path) -> Path:
    """1F1B, said to be optimal, which it is not: ZB-H1 is faster in less than its caps."""
    profile = Profile.load(find(NAME))
    schedule = generate("1f1b", 4, 8)
    plan = Plan.of(profile, [6] * 4, schedule)
    claim = plan.claim.replace(
        lower_bound_us=plan.claim.makespan_us, gap=0, stopped_by="optimal", found_by="me"
    )
    assert plan.costs == partition_costs(profile, [6] * 4)
    plan.replace(claim=claim).save(tmp_path / "slow.json")
    return tmp_path / "slow.json"


def test_a_bound_above_a_schedule_that_is_found_is_false(synth: Synth, slow_plan: Path) -> None:
    assert synth("check", slow_plan).code == 0
    ended = synth("check", slow_plan, "--prove", "--format", "json")
    assert ended.code == 5
    assert "the claimed bound is false" in ended.stderr
    assert json.loads(ended.stdout)["valid"] is False


def test_what_cannot_be_proven_in_time_ends_in_4_with_what_was_reached(
    synth: Synth, slow_plan: Path
) -> None:
    ended = synth("check", slow_plan, "--prove", "--time-limit", "1us", "--format", "json")
    assert ended.code == 4
    found = json.loads(ended.stdout)
    assert found["bound"]["verdict"] == "not within the limit"
    assert 0 < found["bound"]["reached_us"] < found["bound"]["claimed_us"]
    assert "not proven again within the limit" in found["on_trust"]["bound"]


def test_a_limit_without_a_proof_is_refused(synth: Synth, plan_file: Path) -> None:
    ended = synth("check", plan_file, "--time-limit", "3s")
    assert ended.code == 2
    assert "are for --prove" in ended.stderr
