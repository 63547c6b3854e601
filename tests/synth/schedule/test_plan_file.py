"""The schedule file: round trips, and hundreds of damaged files that must each be refused."""

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.errors import SynthError
from synth.families import generate
from synth.objective import BoundScope
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.profile.workload import Workload
from synth.profiles import find
from synth.schedule.files.claim import Claim
from synth.schedule.files.plan_file import Plan
from synth.schedule.files.program_text import program_text
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from tests.synth.naive import Naive

P, M = 4, 6
COSTS = uniform_costs(
    P,
    forward_us=50,
    backward_input_us=60,
    backward_weight_us=30,
    saved_bytes=100,
    saved_w_bytes=40,
    output_bytes=10,
    links=Links(default=Link(latency_us=2)),
)


def plan_of(schedule: Schedule, costs: Costs) -> Plan:
    """A plan with true claims, and the tightest caps for it."""
    claim = Claim.of(schedule, costs)
    claim = claim.replace(lower_bound_us=claim.makespan_us, gap=0)
    return Plan(
        name=schedule.name,
        profile_name="made up",
        profile_fingerprint="0" * 16,
        device="none",
        workload=Workload(model="none", micro_batch_size=1, sequence_length=1),
        arguments={"seed": "0"},
        partition=(1,) * costs.num_stages,
        layers=tuple(f"layer.{i}" for i in range(costs.num_stages)),
        placement=schedule.placement.ranks,
        num_micro_batches=schedule.num_micro_batches,
        caps_bytes=claim.peak_bytes,
        costs=costs,
        claim=claim,
        programs=tuple(map(program_text, schedule.programs)),
    )


PLANS = [plan_of(generate(name, P, M), COSTS) for name in ("1f1b", "zb-h1", "zb-h2", "gpipe")]


def whole(rng: random.Random) -> dict[str, Any]:
    """One of the plans as parsed JSON, free to be damaged."""
    return copy.deepcopy(json.loads(rng.choice(PLANS).to_json()))


def refusal(data: dict[str, Any]) -> str:
    """The message with which reading and checking a file ends; it must not pass."""
    with pytest.raises(SynthError) as raised:
        Plan.from_json(json.dumps(data), "plan.json").check()
    return str(raised.value)


@pytest.mark.parametrize("name", ["1f1b:recompute", "bpipe", "pipeoffload:1,full"])
def test_a_file_holds_what_is_rebuilt_and_what_moves(name: str) -> None:
    costs = COSTS.replace(links=COSTS.links.replace(host=Link(latency_us=5)))
    stage = costs.stages[0].replace(replay_bytes=3, light_rise_bytes=20)
    costs = costs.replace(stages=(stage, *costs.stages[1:]))
    schedule = replace(generate(name, P, M, costs=costs), buffering=Buffering())
    written = plan_of(schedule, costs)
    read = Plan.from_json(written.to_json())
    assert read == written
    assert read.schedule().programs == schedule.programs
    read.check()


def test_a_file_from_before_there_was_anything_to_rebuild_is_read() -> None:
    data = json.loads(PLANS[0].to_json())
    data["schema_version"] = 1
    del data["claim"]["bound_holds_for"], data["fingerprint"]
    for stage in data["costs"]["stages"]:
        assert not {"R", "O", "L", "K", "G"} & set(stage["duration_us"])
        del stage["light_rise_bytes"]
    plan = Plan.from_json(json.dumps(data))
    plan.check()
    assert plan.claim.bound_holds_for == BoundScope.PARTITION


@pytest.mark.parametrize(
    ("key", "since"), [("flops", 7), ("claim.certificate", 4), ("backward_placement", 9)]
)
def test_a_file_has_only_keys_of_its_version(key: str, since: int) -> None:
    data = json.loads(PLANS[0].to_json())
    *parts, name = key.split(".")
    record = data[parts[0]] if parts else data
    record[name] = {}
    data["schema_version"] = since - 1
    with pytest.raises(SynthError) as caught:
        Plan.from_json(json.dumps(data))
    assert str(caught.value) == (
        f"the text: {key} came with schema_version {since}, and schema_version is {since - 1}; "
        f"leave it out, or make the file again with `synth solve`"
    )


def test_a_key_of_one_stage_alone_is_of_its_version_too() -> None:
    data = json.loads(PLANS[0].to_json())
    data["costs"]["stages"][-1]["early_gradient_bytes"] = 3
    data["schema_version"] = 8
    with pytest.raises(SynthError, match="early_gradient_bytes came with schema_version 9"):
        Plan.from_json(json.dumps(data))


def test_backwards_on_the_ranks_of_the_forwards_have_no_ranks_of_their_own() -> None:
    data = json.loads(PLANS[0].to_json())
    data["backward_placement"] = data["placement"]
    plan = Plan.from_json(json.dumps(data))
    plan.check()
    assert plan.schedule() == PLANS[0].schedule()


def test_a_file_says_when_copies_are_reduced() -> None:
    schedule, eager = generate("chimera:late-sync", P, M), generate("chimera", P, M)
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    for given in (schedule, eager):
        plan = Plan.of(profile, [6] * P, given)
        again = Plan.from_json(plan.to_json())
        assert again.schedule() == given
        again.check()
    assert (schedule.eager, eager.eager) == (False, True)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_a_file_survives_a_round_trip(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert again.to_json() == plan.to_json()
    again.check()


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_a_schedule_survives_its_text(plan: Plan) -> None:
    assert plan.schedule() == generate(plan.name, P, M)


@pytest.mark.parametrize("token", ["F0.3", "B12.0", "W1.2@1", "BW3.14", "STEP0", "STEP2@1"])
def test_an_op_survives_its_token(token: str) -> None:
    assert str(Op.parse(token)) == token


# Damages. Each takes a random generator and a file, damages it, and says which words the refusal
# must contain; or says nothing where the result happens to be valid, and the file is passed over.

Damage = Callable[[random.Random, dict[str, Any]], list[str] | None]


def pick(rng: random.Random, data: dict[str, Any]) -> tuple[int, list[str], int]:
    """A random op: its rank, that rank's tokens, its place."""
    rank = rng.randrange(P)
    tokens = data["programs"][rank].split()
    return rank, tokens, rng.randrange(len(tokens))


def put(data: dict[str, Any], rank: int, tokens: list[str]) -> None:
    data["programs"][rank] = " ".join(tokens)


def drop_op(rng: random.Random, data: dict[str, Any]) -> list[str]:
    rank, tokens, place = pick(rng, data)
    token = tokens.pop(place)
    put(data, rank, tokens)
    # A dropped BW leaves B (and W) missing.
    return [f"rank {rank}", f"{token.replace('BW', 'B')} is missing"]


def double_op(rng: random.Random, data: dict[str, Any]) -> list[str]:
    rank, tokens, place = pick(rng, data)
    token = tokens[place]
    tokens.insert(rng.randrange(len(tokens) + 1), token)
    put(data, rank, tokens)
    return [f"rank {rank}", f"({token})", "second time"]


def move_op_to_another_rank(rng: random.Random, data: dict[str, Any]) -> list[str]:
    rank, tokens, place = pick(rng, data)
    token = tokens.pop(place)
    put(data, rank, tokens)
    other = rng.choice([r for r in range(P) if r != rank])
    there = data["programs"][other].split()
    there.insert(rng.randrange(len(there) + 1), token)
    put(data, other, there)
    return [f"rank {other}", f"({token})", f"holds stage {other}, not {rank}"]


def move_op_within_its_rank(rng: random.Random, data: dict[str, Any]) -> list[str] | None:
    rank, tokens, place = pick(rng, data)
    token = tokens.pop(place)
    tokens.insert(rng.randrange(len(tokens) + 1), token)
    put(data, rank, tokens)
    return words_if_invalid(data, rank, tokens)


def swap_ops(rng: random.Random, data: dict[str, Any]) -> list[str] | None:
    rank, tokens, place = pick(rng, data)
    other = rng.randrange(len(tokens))
    tokens[place], tokens[other] = tokens[other], tokens[place]
    put(data, rank, tokens)
    return words_if_invalid(data, rank, tokens)


def words_if_invalid(data: dict[str, Any], rank: int, tokens: list[str]) -> list[str] | None:
    """The expected message about an order, decided without the library."""
    for place, token in enumerate(tokens):
        number = re.sub(r"^[A-Z]+", "", token)
        before = {"B": "F", "BW": "F", "W": "B"}.get(token.removesuffix(number))
        if before and before + number in tokens[place:]:
            # Other ops of this rank may be out of order, too; the message names the first.
            return [f"rank {rank}, op {place} ({token}): runs before {before}{number}"]
    programs = [tuple(map(Op.parse, program.split())) for program in data["programs"]]
    naive = Naive(Schedule.linear("damaged", M, programs), COSTS)
    times = naive.run()
    if times is None:
        return ["deadlock", f"on rank {rank}"]
    caps = data["caps_bytes"]
    for over in range(P):
        if naive.peak(over) > caps[over]:
            return [f"rank {over} at ", f"memory limit {caps[over]} B"]
    makespan = max(t[-1][1] for t in times) - min(t[0][0] for t in times)
    if makespan != data["claim"]["makespan_us"]:
        return [f"makespan_us {data['claim']['makespan_us']}", f"gives {makespan}"]
    if [naive.peak(r) for r in range(P)] != data["claim"]["peak_bytes"]:
        return ["peak_bytes"]
    return None


def misspell_op(rng: random.Random, data: dict[str, Any]) -> list[str]:
    rank, tokens, place = pick(rng, data)
    body = re.sub(r"^[A-Z]+", "", tokens[place])
    stage = body.split(".")[0]
    tokens[place] = rng.choice(
        [
            *(f"H{body}", f"f{body}", f"FB{body}", f"F{stage}", f"F{stage}.", f"F.{stage}"),
            *(f"F{stage}.x", f"F-{stage}.1", f"F{body}.0", f"STEP{stage}.", f"{tokens[place]},"),
            *(f"{tokens[place]}@", f"F{stage},1", "F", "0.1", "…", f"WB{body}"),
        ]
    )
    put(data, rank, tokens)
    return [f"rank {rank}, op {place}: op {tokens[place]!r} is not understood", "F0.3"]


def wrong_stage(rng: random.Random, data: dict[str, Any]) -> list[str]:
    rank, tokens, place = pick(rng, data)
    op = Op.parse(tokens[place])
    other = rng.choice([s for s in range(P + 3) if s != op.stage])
    tokens[place] = str(op._replace(stage=other))
    put(data, rank, tokens)
    return [f"rank {rank}, op {place} ({tokens[place]})", f"holds stage {rank}, not {other}"]


def wrong_micro_batch(rng: random.Random, data: dict[str, Any]) -> list[str]:
    rank, tokens, place = pick(rng, data)
    op = Op.parse(tokens[place])
    other = rng.choice([j for j in range(M + 3) if j != op.microbatch])
    tokens[place] = str(op._replace(microbatch=other))
    put(data, rank, tokens)
    if other >= M:
        return [f"rank {rank}, op {place} ({tokens[place]})", f"from 0 to {M - 1}"]
    return [f"rank {rank}", f"({tokens[place]})", "second time"]


def wrong_replica(rng: random.Random, data: dict[str, Any]) -> list[str]:
    rank, tokens, place = pick(rng, data)
    tokens[place] += "@1"
    put(data, rank, tokens)
    return [f"rank {rank}, op {place} ({tokens[place]})"]


def wrong_kind(rng: random.Random, data: dict[str, Any]) -> list[str]:
    rank, tokens, place = pick(rng, data)
    op = Op.parse(tokens[place])
    kinds = [k for k in ("F", "B", "W", "BW") if k != op.kind]
    tokens[place] = f"{rng.choice(kinds)}{op.stage}.{op.microbatch}"
    put(data, rank, tokens)
    # Doubled, missing or done twice: always an op of this stage and micro-batch, on this rank.
    return [f"rank {rank}", f"{op.stage}.{op.microbatch}"]


def lower_a_cap(rng: random.Random, data: dict[str, Any]) -> list[str]:
    rank = rng.randrange(P)
    cap = rng.randrange(1, data["caps_bytes"][rank])
    data["caps_bytes"][rank] = cap
    return [f"rank {rank} at ", f"memory limit {cap} B" if cap < 1000 else "memory limit "]


def change_a_claim(rng: random.Random, data: dict[str, Any]) -> list[str]:
    claim, by = data["claim"], rng.choice((-7, -1, 1, 7))
    field = rng.choice(("makespan_us", "period_us", "peak_bytes", "lower_bound_us", "gap"))
    if field == "peak_bytes":
        claim[field][rng.randrange(P)] += by
    elif field == "gap":
        claim[field] = rng.choice((0.01, -0.5, 1.5))
    else:
        claim[field] += by
    if field == "lower_bound_us" and by < 0:
        return ["gap"]
    if field == "makespan_us":
        return ["claim"]  # the bound or the gap no longer match it, or the simulation
    return [field]


def claim_an_unknown_objective(rng: random.Random, data: dict[str, Any]) -> list[str]:
    data["claim"]["objective"] = rng.choice(("speed", "", "Makespan"))
    return ["objective", "makespan, period"]


def slow_a_stage(rng: random.Random, data: dict[str, Any]) -> list[str]:
    stage = rng.randrange(P)
    data["costs"]["stages"][stage]["duration_us"]["F"] += rng.randint(100, 1000)
    return ["makespan_us", "costs were changed"]


def fatten_a_stage(rng: random.Random, data: dict[str, Any]) -> list[str]:
    stage = rng.randrange(P)
    data["costs"]["stages"][stage]["static_bytes"] += rng.randint(1, 99)
    return [f"rank {stage} at ", "memory limit "]


REQUIRED = (
    *("name", "profile_name", "profile_fingerprint", "device", "workload", "partition", "layers"),
    *("placement", "num_micro_batches", "costs", "claim", "programs"),
)


def lose_a_field(rng: random.Random, data: dict[str, Any]) -> list[str]:
    field = rng.choice(REQUIRED)
    del data[field]
    return [f"{field}: Field required"]


def lose_an_inner_field(rng: random.Random, data: dict[str, Any]) -> list[str]:
    where, inner = rng.choice(
        [
            *(("claim", field) for field in ("objective", "makespan_us", "peak_bytes", "gap")),
            *(("costs", field) for field in ("stages",)),
            *(("workload", field) for field in ("model", "sequence_length")),
        ]
    )
    del data[where][inner]
    return [f"{where}.{inner}: Field required"]


def add_an_unknown_field(rng: random.Random, data: dict[str, Any]) -> list[str]:
    where = rng.choice(("", "claim", "costs", "workload"))
    (data[where] if where else data)["colour"] = "red"
    return [f"{where}.colour".lstrip("."), "not permitted"]


def give_a_wrong_type(rng: random.Random, data: dict[str, Any]) -> list[str]:
    wrong: dict[str, tuple[Any, ...]] = {
        "num_micro_batches": ("six", 0, -1, 1.5, None, []),
        "programs": ("F0.0", [], [1, 2, 3, 4], None, {}),
        "caps_bytes": ([0, 1, 1, 1], "lots", [-5, 1, 1, 1]),
        "partition": ([1, 1, 0, 2], "even", 4),
        "placement": ([0, 1, 2, 3], "linear", [[0, 1, -2, 3]]),
        "send_behind": (-1, "late"),
        "costs": ([], "free", {}),
    }
    field, value = rng.choice([(field, value) for field in wrong for value in wrong[field]])
    data[field] = value
    return [field]


def disagree_with_itself(rng: random.Random, data: dict[str, Any]) -> list[str]:
    field, value, words = rng.choice(
        [
            ("partition", [2, 1, 1, 1], "partition covers 5 layers, there are 4"),
            ("partition", [2, 2], "4 stage costs for 2 stages"),
            ("placement", [[0, 1, 2]], "placement must give a rank to each of the 4 stages"),
            ("placement", [], "placement must give a rank"),
            ("placement", [[0, 1, 2, 4]], "placement names ranks [0, 1, 2, 4]"),
            ("caps_bytes", [1, 2], "2 caps for 4 ranks"),
            ("programs", data["programs"][:3], "there are 3 programs"),
            ("programs", [*data["programs"], ""], "there are 5 programs"),
        ]
    )
    data[field] = value
    return [words]


def change_the_number_of_micro_batches(rng: random.Random, data: dict[str, Any]) -> list[str]:
    data["num_micro_batches"] = given = rng.choice([*range(1, M), M + 1, M + 5])
    if given > M:
        return ["rank 0", f"F0.{M} is missing"]
    return ["rank 0", f"from 0 to {given - 1}"]


def permute_the_placement(rng: random.Random, data: dict[str, Any]) -> list[str]:
    ranks = data["placement"][0]
    a, b = rng.sample(range(P), 2)
    ranks[a], ranks[b] = ranks[b], ranks[a]
    first = min(a, b)
    return [f"rank {first}, op 0", f"holds stage {max(a, b)}, not {first}"]


def swap_two_ranks_programs(rng: random.Random, data: dict[str, Any]) -> list[str]:
    a, b = sorted(rng.sample(range(P), 2))
    programs = data["programs"]
    programs[a], programs[b] = programs[b], programs[a]
    return [f"rank {a}, op 0 (F{b}.0)", f"holds stage {a}, not {b}"]


def come_from_the_future(rng: random.Random, data: dict[str, Any]) -> list[str]:
    data["schema_version"] = rng.choice((Plan.VERSION + 1, Plan.VERSION + 2, 10**9))
    return ["schema_version", "upgrade synth"]


def be_of_another_format(rng: random.Random, data: dict[str, Any]) -> list[str]:
    data["format"] = rng.choice(("synth-profile", "", None, 3))
    return ["format", "needed 'synth-schedule'", "`synth solve`"]


DAMAGES: list[Damage] = [
    drop_op,
    double_op,
    move_op_to_another_rank,
    move_op_within_its_rank,
    swap_ops,
    misspell_op,
    wrong_stage,
    wrong_micro_batch,
    wrong_replica,
    wrong_kind,
    lower_a_cap,
    change_a_claim,
    claim_an_unknown_objective,
    slow_a_stage,
    fatten_a_stage,
    lose_a_field,
    lose_an_inner_field,
    add_an_unknown_field,
    give_a_wrong_type,
    disagree_with_itself,
    change_the_number_of_micro_batches,
    permute_the_placement,
    swap_two_ranks_programs,
    come_from_the_future,
    be_of_another_format,
]
FILES_PER_DAMAGE = 40


def damaged_files(damage: Damage) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Files that this damage makes invalid, with the expected messages."""
    for seed in range(FILES_PER_DAMAGE):
        rng = random.Random(f"{damage.__name__} {seed}")
        data = whole(rng)
        words = damage(rng, data)
        if words is not None:
            yield data, words


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_refused_in_words_that_name_the_damage(damage: Damage) -> None:
    files = list(damaged_files(damage))
    assert len(files) >= FILES_PER_DAMAGE // 2
    for data, words in files:
        message = refusal(data)
        for word in words:
            assert word in message


@pytest.mark.parametrize(
    "field", ["send_behind", "receive_ahead", "num_micro_batches", "caps_bytes"]
)
def test_a_number_beyond_any_machine_is_refused(field: str) -> None:
    data = whole(random.Random(0))
    data[field] = [10**30] * P if field == "caps_bytes" else 10**30
    assert field in refusal(data) and "Input should be less than" in refusal(data)


@pytest.mark.parametrize("field", ["static_bytes", "gradient_bytes"])
def test_a_stage_that_is_too_large_to_be_added_up_is_refused(field: str) -> None:
    data = whole(random.Random(0))
    data["costs"]["stages"][1][field] = 10**30
    assert f"stage 1 costs up to {10**30}" in refusal(data)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(share: float) -> None:
    text = PLANS[0].to_json()
    with pytest.raises(SynthError, match=r"plan\.json is not JSON"):
        Plan.from_json(text[: int(len(text) * share)], "plan.json")


def test_saving_into_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SynthError, match=r"cannot write .*No such file"):
        PLANS[0].save(tmp_path / "no" / "plan.json")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(SynthError, match="No space left"):
        PLANS[0].save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    assert path.read_text() == "old"


def test_a_rank_gets_the_layers_of_its_stages() -> None:
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    names = [layer.name for layer in profile.layers]
    plan = Plan.of(profile, [6, 5, 6, 7], generate("zb-v", 2, 4))
    assert plan.modules(0, names) == {0: names[:6], 3: names[17:]}
    assert plan.modules(1, names) == {1: names[6:11], 2: names[11:17]}
    with pytest.raises(SynthError, match="has ranks 0 to 1; rank 2 was asked for"):
        plan.modules(2, names)
    with pytest.raises(SynthError, match=r"23 layers were given, plan .* is for 24"):
        plan.modules(0, names[1:])


def test_both_copies_of_the_stages_are_in_a_ranks_layers() -> None:
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    plan = Plan.of(profile, [12, 12], generate("chimera", 2, 4))
    assert [list(plan.modules(rank, range(24))) for rank in (0, 1)] == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("family", "place", "odd"),
    [
        ("zero3:1", ("weights", "homes"), [[True], [False]]),
        ("zero3:1", ("placement",), [[True, False], [True, False]]),
        ("pipedream", ("versions", "update_every"), True),
        ("2bw:every=2", ("versions", "update_every"), "2"),
        ("2bw:every=2", ("versions", "update_every"), 0),
    ],
)
def test_ranks_and_numbers_of_micro_batches_are_whole_numbers(
    family: str, place: tuple[str, ...], odd: object
) -> None:
    profile = Profile.load(find("gpt-bytes-cpu"))
    half = len(profile.layers) // 2
    sizes = [half, len(profile.layers) - half]
    data = json.loads(Plan.of(profile, sizes, generate(family, 2, 4)).to_json())
    at = data
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = odd
    with pytest.raises(SynthError, match=place[-1]):
        Plan.from_json(json.dumps(data))
