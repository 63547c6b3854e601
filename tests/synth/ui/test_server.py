"""The server of `synth ui`, asked as its page does."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

import synth
from synth.profile import Profile
from synth.profile.layer_times import LayerTimes
from synth.profile.links import Links, PairLink
from synth.schedule.files.plan_file import Plan
from synth.ui.answers import Answers, FirstShown
from synth.ui.limits import LOCAL
from synth.ui.models import Models
from tests.synth.ui_pages import LONG, SETTING, TOKEN, Client

PROFILE = "zb-1.5b-p8-m24"
# A search that ends by itself, long before its limit.
QUICK = {**SETTING, "micro_batches": 4, "mem_limit": "40GB", "time_limit": 60}


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


def test_the_page_loads_its_own_files_only_and_says_so(client: Client) -> None:
    shown = client.http.get(f"{client.root}/")
    assert shown.status_code == 200
    policy = shown.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "http" not in shown.text.replace('http-equiv="', "")
    for name in ("page.css", "ui.css", "viewer.js", "main.js"):
        assert client.http.get(f"{client.root}/static/{name}").status_code == 200, name


def test_files_that_are_not_of_the_page_are_not_served(client: Client) -> None:
    for name in ("server.py", "..%2fserver.py", "%2e%2e/limits.py", "page.html", "x.js"):
        answered = client.http.get(f"{client.root}/static/{name}")
        assert answered.status_code == 404, name


def test_two_published_schedules_are_drawn_with_their_times(client: Client) -> None:
    drawn = client.draw({"schedule": "1f1b"}, {"schedule": "zb-h1"})["drawn"]
    for one, name in zip(drawn, ("1f1b", "zb-h1"), strict=True):
        plan = synth.simulate(name, PROFILE, ranks=4, micro_batches=6)
        assert one["makespan_us"] == plan.claim.makespan_us
        assert one["chart"]["peakBytes"] == list(plan.claim.peak_bytes)


def test_a_schedule_that_is_a_search_is_left_for_a_later_request(client: Client) -> None:
    body = {
        "setting": {**SETTING, "placement": "v"},
        "sources": [{"schedule": "1f1b"}, {"schedule": "zb-v-limit"}],
    }
    drawn = client.post("draw", {**body, "is_quick": True}).json()["drawn"]
    assert drawn[0]["makespan_us"] > 0
    assert drawn[1] == {"name": "zb-v-limit", "waits": True}
    later = client.post("draw", body).json()["drawn"]
    assert later[1]["makespan_us"] > 0
    again = client.post("draw", {**body, "is_quick": True}).json()["drawn"]
    assert again == later  # it has been made


def test_the_schedules_to_choose_from_are_those_of_the_placement(client: Client) -> None:
    choices = client.draw(placement="looped:3")["choices"]
    assert [one["placement"] for one in choices] == ["looped:3"]
    assert "interleaved:3" in choices[0]["schedules"]


def test_a_partition_is_of_the_schedules_with_as_many_stages(client: Client) -> None:
    sources = ({"schedule": "1f1b"}, {"schedule": "zb-v"})
    sizes = [9, 5, 5, 5]
    linear, v = client.draw(*sources, partition=sizes)["drawn"]
    assert linear["partition"] == sizes
    assert len(v["partition"]) == 8
    (wrong,) = client.draw({"schedule": "1f1b"}, partition=[30, 1, 1, 1])["drawn"]
    assert "is not one of 24 layers" in wrong["error"]


def test_above_a_limit_the_schedule_is_drawn_with_the_words_of_the_verifier(
    client: Client,
) -> None:
    (one,) = client.draw({"schedule": "gpipe"}, mem_limit="30GB")["drawn"]
    assert one["exceeds"].startswith("rank 0 at F")
    assert "memory limit 30 GB" in one["exceeds"]
    assert one["chart"]["capBytes"] == [30 * 10**9] * 4


def test_links_change_the_time(client: Client) -> None:
    source = {"schedule": "1f1b"}
    fast, slow = (client.draw(source, link=link)["drawn"][0] for link in (None, "50ms,1GB/s"))
    assert slow["makespan_us"] > fast["makespan_us"]


def test_sliders_are_a_model_of_equal_layers(client: Client) -> None:
    sliders = {"layers": 8, "forward_ms": 1, "backward_ms": 1, "weight_ms": 1, "output_mb": 0}
    answer = client.draw({"schedule": "1f1b"}, sliders=sliders, micro_batches=8)
    # 1F1B of p equal stages with F = 2 ms and BW = 4 ms takes m + p - 1 turns of 6 ms.
    assert answer["drawn"][0]["makespan_us"] == (8 + 3) * 6000
    assert len(answer["layers"]) == 8
    assert answer["commands"]["solve"].startswith("# profile.json: save it with the button Profile")


def programs_of(client: Client, name: str) -> list[str]:
    plan = synth.simulate(name, PROFILE, ranks=4, micro_batches=6)
    return list(plan.programs)


def put_before(line: str, moved: str, other: str) -> str:
    ops = [op for op in line.split() if op != moved]
    ops.insert(ops.index(other), moved)
    return " ".join(ops)


def test_an_order_by_hand_gets_its_time(client: Client) -> None:
    programs = programs_of(client, "zb-h1")
    # The W runs at the end instead of in a gap, and what it needs is held until then.
    programs[0] = put_before(programs[0], "W0.0", "W0.5")
    (before,) = client.draw({"schedule": "zb-h1"})["drawn"]
    (after,) = client.draw({"schedule": "zb-h1", "programs": programs})["drawn"]
    assert after["name"] == "by hand"
    assert after["makespan_us"] >= before["makespan_us"]
    assert after["peak_bytes"] >= before["peak_bytes"]


def test_what_runs_at_once_does_so_in_an_order_by_hand(client: Client, tmp_path: Path) -> None:
    block = LayerTimes(name="block", count=8, forward_us=1000, backward_us=2000, pair_us=2200)
    profile = Profile.from_times("moe", [block])
    plan = synth.simulate("dualpipe-v:overlap", profile, ranks=2, micro_batches=6)
    plan.save(tmp_path / "plan.json")
    # The page names the ops alone, and here swaps the last two W's.
    programs = [line.replace("&", " ") for line in plan.programs]
    assert programs[1].endswith(" W2.5 W1.5")
    programs[1] = put_before(programs[1], "W1.5", "W2.5")
    (after,) = client.draw({"plan": "plan.json", "programs": programs}, ranks=2)["drawn"]
    assert after["makespan_us"] == plan.claim.makespan_us


def refused(client: Client, programs: list[str]) -> str:
    (one,) = client.draw({"schedule": "1f1b", "programs": programs})["drawn"]
    words: str = one["error"]
    assert "\n" not in words
    return words


def test_a_backward_before_its_forward_is_refused_in_the_words_of_the_verifier(
    client: Client,
) -> None:
    programs = programs_of(client, "1f1b")
    programs[0] = put_before(programs[0], "BW0.0", "F0.0")
    assert refused(client, programs) == "rank 0, op 0 (BW0.0): runs before F0.0"


def test_a_deadlock_is_refused_in_the_words_of_the_verifier(client: Client) -> None:
    programs = programs_of(client, "1f1b")
    # Rank 2 waits for BW3.0 before F2.1, and rank 3 for F2.1 before BW3.0.
    programs[2] = put_before(programs[2], "BW2.0", "F2.1")
    programs[3] = put_before(programs[3], "F3.1", "BW3.0")
    assert refused(client, programs).startswith("deadlock: ")


def test_an_explanation_is_that_of_the_command(client: Client) -> None:
    body = {"setting": SETTING, "source": {"schedule": "1f1b"}}
    text = " ".join(client.post("explain", body).json()["text"].split())
    assert "what holds it back is" in text
    assert "critical path:" in text


def saved(client: Client, kind: str, **source: Any) -> dict[str, bytes]:
    answered = client.post("export", {"setting": SETTING, "source": source, "kind": kind})
    assert answered.status_code == 200, answered.text
    files = answered.json()["files"]
    return {file["name"]: base64.b64decode(file["data"]) for file in files}


def test_a_saved_plan_is_one_that_the_commands_check(client: Client) -> None:
    (text,) = saved(client, "plan", schedule="zb-h1").values()
    plan = Plan.from_json(text.decode())
    plan.check()
    assert plan.name == "zb-h1"


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("csv", {"plan.csv", "plan.stages.csv"}),
        ("torchtitan", {"plan.toml", "plan.csv"}),
        ("megatron", {"megatron-layout.txt"}),
        ("profile", {"profile.json"}),
    ],
)
def test_files_of_other_runtimes_are_saved(client: Client, kind: str, names: set[str]) -> None:
    found = saved(client, kind, schedule="1f1b")
    assert set(found) == names
    assert all(found.values())


def test_a_picture_is_a_png(client: Client) -> None:
    pytest.importorskip("pypdfium2")
    (data,) = saved(client, "png", schedule="1f1b").values()
    assert data.startswith(b"\x89PNG")


def test_a_search_tells_of_its_progress_and_its_plan_can_be_drawn(client: Client) -> None:
    job = client.post("solve", {"setting": QUICK}).json()["job"]
    *_, last = client.followed(job)
    assert last["error"] == "" and not last["is_running"]
    assert last["bound_us"] <= last["value_us"]
    assert 0 <= last["gap"] < 1 and last["stopped_by"]
    (one,) = client.draw({"plan": last["plan"]})["drawn"]
    assert one["value_us"] == last["value_us"]


def test_a_search_is_stopped_at_any_time_and_another_waits_for_it(client: Client) -> None:
    body = {"setting": LONG}
    job = client.post("solve", body).json()["job"]
    busy = client.post("solve", body)
    assert busy.status_code == 409
    words = "another search is running; stop it, or wait until it ends"
    assert busy.json() == {"error": words, "job": job}
    assert client.http.get(f"{client.root}/start").json()["job"] == job
    assert client.http.post(f"{client.root}/jobs/{job}/stop").status_code == 200
    *_, last = client.followed(job)
    assert not last["is_running"] and last["kind"] == "solve"
    assert client.http.get(f"{client.root}/start").json()["job"] is None


def test_what_no_search_can_meet_is_one_line(client: Client) -> None:
    job = client.post("solve", {"setting": {**QUICK, "mem_limit": "1MB"}}).json()["job"]
    *_, last = client.followed(job)
    assert last["error"] and "\n" not in last["error"]


@pytest.mark.slow
def test_each_point_of_a_curve_is_a_plan(client: Client) -> None:
    setting = {**SETTING, "ranks": 2, "micro_batches": 3, "time_limit": 30}
    job = client.post("curve", {"setting": setting, "points": 3}).json()["job"]
    *_, last = client.followed(job)
    assert last["error"] == "" and len(last["points"]) >= 2
    for point in last["points"]:
        (one,) = client.draw({"plan": point["plan"]})["drawn"]
        assert one["value_us"] == point["value_us"]


@pytest.mark.slow
def test_what_would_help_is_said_in_words(client: Client) -> None:
    body = {"setting": {**SETTING, "time_limit": 1}, "source": {"schedule": "1f1b"}}
    *_, last = client.followed(client.post("what-if", body).json()["job"])
    assert "every link twice as fast" in last["text"]


def test_files_of_the_working_folder_are_offered_and_no_others(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    profile = synth.Profile.load(Path(synth.__file__).parents[1] / "profiles" / f"{PROFILE}.json")
    profile.save(inside / "mine.json")
    profile.save(outside / "other.json")
    (inside / "link.json").symlink_to(outside / "other.json")
    client = Client(inside)
    models = client.http.get(f"{client.root}/start").json()["models"]
    assert models["profile"] == ["mine.json"]
    assert client.draw({"schedule": "1f1b"}, model="mine.json")["drawn"][0]["makespan_us"]
    for name in ("../outside/other.json", str(outside / "other.json"), "link.json", "/etc/passwd"):
        answered = client.post("draw", {"setting": {**SETTING, "model": name}, "sources": []})
        assert answered.status_code == 400, name
        assert "there is no model or plan" in answered.json()["error"]


def test_a_config_is_estimated_on_a_known_device_only(client: Client) -> None:
    from synth.estimates.model_config import known_model

    text = json.dumps(known_model("llama3-8b").config)
    opened = client.post("open", {"text": text}).json()
    assert opened["kind"] == "config"
    answer = client.draw({"schedule": "1f1b"}, model=opened["name"], device="h100", tp=2)
    assert answer["drawn"][0]["makespan_us"]
    assert "synth estimate config.json --device h100 --tp 2" in answer["commands"]["solve"]
    setting = {**SETTING, "model": opened["name"], "device": "/etc/passwd"}
    refused = client.post("draw", {"setting": setting, "sources": []})
    assert refused.status_code == 400 and "give a device: " in refused.json()["error"]


def test_an_opened_plan_is_drawn_as_it_claims(client: Client) -> None:
    plan = synth.simulate("zb-h1", PROFILE, ranks=4, micro_batches=6)
    opened = client.post("open", {"text": plan.to_json()}).json()
    assert (opened["kind"], opened["profile"], opened["ranks"]) == ("plan", PROFILE, 4)
    (one,) = client.draw({"plan": opened["name"]})["drawn"]
    assert one["makespan_us"] == plan.claim.makespan_us


def test_schedules_that_are_too_large_are_refused_before_they_are_made(client: Client) -> None:
    (one,) = client.draw({"schedule": "1f1b"}, micro_batches=1 << 20)["drawn"]
    assert "too many" in one["error"]


def test_the_token_is_part_of_every_address(client: Client) -> None:
    for path in ("/", "/start", f"/{TOKEN[:-1]}/start", f"/{TOKEN}x/start", "/static/main.js"):
        assert client.http.get(path).status_code == 403, path


def test_a_plan_of_other_settings_says_how_they_differ(client: Client) -> None:
    plan = synth.simulate("zb-h1", PROFILE, ranks=4, micro_batches=6)
    name = client.post("open", {"text": plan.to_json()}).json()["name"]

    def differs(**setting: Any) -> str:
        (one,) = client.draw({"plan": name}, **setting)["drawn"]
        words: str = one["differs"]
        return words

    assert differs() == ""
    assert differs(micro_batches=32) == "plan for m = 6; settings have m = 32"
    assert differs(ranks=3) == "plan for 4 ranks; settings have 3 ranks"
    other = differs(model="zb-6.2b-p8-m24", micro_batches=8)
    assert other == f"plan for m = 6, {PROFILE}; settings have m = 8, zb-6.2b-p8-m24"
    assert differs(link="1ms,1GB/s") == "plan for other links; settings have their own"
    (published,) = client.draw({"schedule": "1f1b"})["drawn"]
    assert published["differs"] == ""


def test_an_opened_plan_finds_its_model_or_is_shown_alone(tmp_path: Path) -> None:
    client = Client(tmp_path)
    times = {"forward_us": 10, "backward_input_us": 10, "backward_weight_us": 10}
    layers = [LayerTimes(name="a", count=8, **times)]
    profile = synth.Profile.from_times(PROFILE, layers)
    text = synth.simulate("1f1b", profile, ranks=4, micro_batches=6).to_json()
    opened = client.post("open", {"text": text}).json()
    assert opened["profile"] is None
    (one,) = client.draw({"plan": opened["name"]})["drawn"]
    assert one["differs"] == f"plan for another {PROFILE}; settings have {PROFILE}"
    assert len(one["layers"]) == 8 and one["layers"][0] == ["a.0", 30]
    profile.save(tmp_path / "own.json")
    assert client.post("open", {"text": text}).json()["profile"] == "own.json"


def test_a_plan_above_a_later_memory_limit_says_so_wherever_it_is_shown(client: Client) -> None:
    plan = synth.simulate("gpipe", PROFILE, ranks=4, micro_batches=6)
    source = {"plan": client.post("open", {"text": plan.to_json()}).json()["name"]}
    assert client.draw(source)["drawn"][0]["exceeds"] == ""
    (one,) = client.draw(source, mem_limit="30GB")["drawn"]
    assert "memory limit 30 GB" in one["exceeds"]
    body = {"setting": {**SETTING, "mem_limit": "30GB"}, "source": source}
    assert "memory limit 30 GB" in client.post("explain", body).json()["text"]
    notes = client.post("export", {**body, "kind": "plan"}).json()["notes"]
    assert "memory limit 30 GB" in notes[0]


def test_the_page_says_how_many_tokens_a_micro_batch_has(client: Client) -> None:
    drawn = client.draw({"schedule": "1f1b"}, model="llama3-70b-h100-tp8")
    assert drawn["about"].endswith("; a micro-batch is 1 × 8,192 tokens")
    assert "tokens" not in client.draw({"schedule": "1f1b"}, sliders={"layers": 8})["about"]


def test_times_that_are_chosen_by_hand_have_no_throughput(client: Client) -> None:
    answer = client.draw({"schedule": "1f1b"}, sliders={"layers": 8})
    assert answer["about"].startswith("chosen by hand; ")
    assert "/s" not in answer["drawn"][0]["chart"]["note"]
    assert "tokens/s" in client.draw({"schedule": "1f1b"})["drawn"][0]["chart"]["note"]


def test_a_setting_that_cannot_be_drawn_has_the_schedules_to_choose_from(client: Client) -> None:
    refused = client.post("draw", {"setting": {**SETTING, "placement": "spiral"}})
    assert refused.status_code == 400 and "spiral" in refused.json()["error"]
    names = [name for one in refused.json()["choices"] for name in one["schedules"]]
    assert {"1f1b", "zb-v"} <= set(names)


@pytest.mark.parametrize(
    ("layers", "measured", "ranks", "lower"),
    [(10, 0, 4, "zb-v"), (10, 4, 4, "zb-v"), (10, 6, 6, "zb-h1"), (3, 4, 1, "zb-v"),
     (1, 0, 1, "zb-h1"), (40, 0, 8, "zb-v")],
)  # fmt: skip
def test_a_profile_is_shown_first_with_schedules_that_exist(
    tmp_path: Path, layers: int, measured: int, ranks: int, lower: str
) -> None:
    pairs = tuple(PairLink(source=rank, target=rank + 1) for rank in range(measured - 1))
    layer = LayerTimes(name="a", count=layers, forward_us=10, backward_us=20)
    profile = synth.Profile.from_times("own", [layer], links=Links(pairs=pairs))
    profile.save(tmp_path / "own.json")
    answers = Answers(Models(tmp_path, LOCAL), str, FirstShown(name="own.json"))
    opened = answers.first(None)["opened"]
    assert opened["pipeline"] == {"ranks": ranks, "lower": lower}
    for name in ("1f1b", lower):
        synth.simulate(name, profile, ranks=ranks, micro_batches=4)
