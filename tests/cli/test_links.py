"""`--link`: transfers take what is said, whatever the profile measured."""

import json
from pathlib import Path

import pytest

from synth.profile import Profile
from synth.profile.links import Link, Links, NodeLink, PairLink
from synth.profiles import find
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import NAME, SMALL_SOLVE, Synth

DEFAULT = Link(latency_us=10.0, bandwidth_bytes_per_s=25e9)
BETWEEN = NodeLink(ranks_per_node=2, latency_us=900.0, bandwidth_bytes_per_s=1.25e9)


def solved(synth: Synth, folder: Path, *more: str) -> Plan:
    ended = synth(*SMALL_SOLVE, "-o", folder / "plan.json", *more)
    assert ended.code == 0, ended.stderr
    return Plan.load(folder / "plan.json")


def test_transfers_take_what_is_given_and_the_file_says_so(synth: Synth, tmp_path: Path) -> None:
    asked = ("--link", "10us,25GB/s", "--link", "2:0.9ms,10Gb/s")
    plan = solved(synth, tmp_path, *asked)
    assert plan.costs.links == Links(default=DEFAULT, nodes=(BETWEEN,))
    assert plan.arguments["link"] == "10us,25GB/s; 2:0.9ms,10Gb/s"
    sent = plan.costs.stages[0].output_bytes
    assert plan.costs.boundary_us(1, 0, 1) == round(10 + sent / 25e9 * 1e6)
    assert plan.costs.boundary_us(1, 1, 2) == round(900 + sent / 1.25e9 * 1e6)
    plan.check()
    assert plan.profile_fingerprint != Profile.load(find(NAME)).fingerprint()


def test_slower_links_take_longer_and_the_host_s_link_stays(synth: Synth, tmp_path: Path) -> None:
    host, profile = Link(latency_us=3.0), Profile.load(find(NAME))
    profile.replace(links=profile.links.replace(host=host)).save(tmp_path / "hosted.json")
    command = (SMALL_SOLVE[0], tmp_path / "hosted.json", *SMALL_SOLVE[2:])
    values = []
    for link in ("0us", "2ms"):
        ended = synth(*command, "--link", link, "-o", tmp_path / "plan.json")
        assert ended.code == 0, ended.stderr
        plan = Plan.load(tmp_path / "plan.json")
        assert plan.costs.links.host == host
        values.append(plan.claim.value_us)
    # Three ranks further there and back, each way.
    assert values[1] - values[0] >= 2 * 3 * 2000


def test_links_of_single_ranks_are_left_out_and_that_is_said(synth: Synth, tmp_path: Path) -> None:
    profile = Profile.load(find(NAME))
    pairs = (PairLink(source=0, target=1, latency_us=5.0),)
    profile.replace(links=profile.links.replace(pairs=pairs)).save(tmp_path / "pairs.json")
    command = (SMALL_SOLVE[0], tmp_path / "pairs.json", *SMALL_SOLVE[2:], "--dry-run")
    said = "what the profile says of links between single ranks is left out"
    assert said in synth(*command, "--link", "4:1ms").stderr
    assert said not in synth(*command).stderr


def test_only_between_nodes_leaves_the_measured_link_within(synth: Synth, tmp_path: Path) -> None:
    plan = solved(synth, tmp_path, "--link", "2:900us,10Gb/s")
    assert plan.costs.links.default == Profile.load(find(NAME)).links.default
    assert plan.costs.links.nodes == (BETWEEN,)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("10,25GB/s", "latency '10' has no unit, such as us or ms"),
        ("10us,25GB", "bandwidth '25GB' is not understood"),
        ("25GB/s", "duration '25GB/s' is not understood"),
        ("0:10us", "'0' is no number of ranks of a node, 1 or more"),
        ("x:10us", "'x' is no number of ranks of a node"),
        ("10000000:10us", "is no number of ranks of a node"),
        ("70000:10us", "ranks_per_node: Input should be less than or equal to 65536"),
        ("200000h", "latency_us: Input should be less than or equal to"),
        (" ", "duration ' ' is not understood"),
    ],
)
def test_what_is_no_link_is_refused_with_how_to_write_one(
    synth: Synth, given: str, said: str
) -> None:
    ended = synth(*SMALL_SOLVE, "--link", given)
    assert ended.code == 2
    assert said in ended.stderr
    assert "--link 10us,25GB/s, or between nodes of 8 ranks --link 8:20us,200Gb/s" in ended.stderr


@pytest.mark.parametrize(
    "twice", [("10us", "20us,1GB/s"), ("8:10us", "8:20us"), ("10us", "8:1us", "10us")]
)
def test_two_links_for_the_same_ranks_are_refused(synth: Synth, twice: tuple[str, ...]) -> None:
    ended = synth(*SMALL_SOLVE, *(word for link in twice for word in ("--link", link)))
    assert ended.code == 2
    assert "are for the same ranks; give one of them" in ended.stderr


@pytest.mark.usefixtures("kept_workers")
def test_compare_and_frontier_take_them_too(synth: Synth, tmp_path: Path) -> None:
    asked = (NAME, "--ranks", "4", "--micro-batches", "4", "--link", "2:50ms")
    ended = synth("compare", *asked, "--no-solve", "--only", "1f1b", "--format", "json")
    assert ended.code == 0
    slow = json.loads(ended.stdout)["schedules"][0]["makespan_us"]
    ended = synth("compare", *asked[:-2], "--no-solve", "--only", "1f1b", "--format", "json")
    assert slow >= json.loads(ended.stdout)["schedules"][0]["makespan_us"] + 2 * 49_000
    curve = tmp_path / "curve.json"
    more = ("--points", "2", "--time-limit", "1s", "-o", curve)
    assert synth("frontier", *asked, *more).code == 0
    points = json.loads(curve.read_text())["points"]
    assert all(Plan.model_validate(point).costs.links.nodes for point in points)
    ended = synth("frontier", *asked[:-2], *more)
    assert ended.code == 2
    assert "profile fingerprint" in ended.stderr


def test_a_profile_whose_links_are_free_says_so(synth: Synth, tmp_path: Path) -> None:
    Profile.load(find(NAME)).replace(links=Links()).save(tmp_path / "free.json")
    command = ("solve", tmp_path / "free.json", *SMALL_SOLVE[2:], "--dry-run")
    said = "transfers take no time in this profile; --link 10us,25GB/s sets latency and bandwidth"
    assert said in synth(*command).stderr
    assert said not in synth(*command, "--link", "1us").stderr
    assert said not in synth(*SMALL_SOLVE, "--dry-run").stderr
