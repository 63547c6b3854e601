"""Searches that nobody stops: limits, visitors who leave, and what they are charged."""

from pathlib import Path

import pytest

from synth.ui.jobs import Busy, Job, Jobs, PlanSearch
from synth.ui.limits import LOCAL, public
from synth.ui.models import Models
from synth.ui.setting import PipelineSetting
from synth.ui.visitors import OverBudget, Visitors, counted_address
from tests.synth.ui_pages import LONG, Client

# Far more than any step takes.
PATIENCE_S = 120.0


def until_stopped(job: Job) -> None:
    """A search that ends only when it is stopped."""
    assert job.stop.wait(PATIENCE_S)


def ended(job: Job) -> bool:
    job.join(PATIENCE_S)
    return job.ended_s is not None and job.snapshot()["error"] == ""


def test_a_search_is_stopped_at_its_limit_and_says_so() -> None:
    job = Job(until_stopped, limit_s=0.01)
    job.start()
    assert ended(job)
    assert job.snapshot()["stopped_because"] == "the server's limit of 0.01 s"


def test_a_search_that_nobody_follows_is_stopped_and_says_so() -> None:
    job = Job(until_stopped, alone_s=0.01)
    job.start()
    assert ended(job)
    assert job.snapshot()["stopped_because"] == "nobody followed it"


def test_a_search_that_ends_by_itself_has_no_other_reason() -> None:
    job = Job(lambda job: None, limit_s=PATIENCE_S)
    job.start()
    assert ended(job)
    assert job.snapshot()["stopped_because"] == ""


def test_a_search_that_was_stopped_by_hand_does_not_say_that_it_was_its_limit() -> None:
    job = Job(until_stopped, limit_s=PATIENCE_S)
    job.start()
    job.end_by_hand()
    assert ended(job)
    assert job.snapshot()["stopped_because"] == "stopped by hand"


@pytest.mark.parametrize(("limit_s", "reason"), [(0.01, "time limit"), (PATIENCE_S, "interrupt")])
def test_a_plan_says_whether_the_limit_or_someone_ended_its_search(
    tmp_path: Path, limit_s: float, reason: str
) -> None:
    models = Models(tmp_path, LOCAL)
    setting = PipelineSetting(ranks=4, micro_batches=12, placement="v", mem_limit="40GB")
    search = PlanSearch(setting, models.profile(setting), LOCAL, models)

    def stopped_before_it_begins(job: Job) -> None:
        until_stopped(job)
        search(job)

    job = Job(stopped_before_it_begins, limit_s=limit_s)
    job.start()
    if reason == "interrupt":
        job.end_by_hand()
    assert ended(job)
    state = job.snapshot()
    assert state["stopped_by"] == models.plan(state["plan"]).claim.stopped_by == reason


def test_a_search_is_stopped_after_the_last_who_follows_it_has_gone() -> None:
    job = Job(until_stopped, alone_s=0.01)
    with job.followed():
        job.start()
        with job.followed():
            pass
        assert not job.stop.wait(0.1)
    assert ended(job)


def test_the_search_that_runs_is_named_to_who_starts_another() -> None:
    jobs = Jobs(LOCAL)
    job = jobs.start(until_stopped, "solve")
    assert jobs.running is job
    with pytest.raises(Busy) as busy:
        jobs.start(until_stopped, "solve")
    assert busy.value.job == job.name
    jobs.stop_all(PATIENCE_S)
    assert jobs.running is None


def test_the_search_of_a_visitor_is_not_named_to_others(tmp_path: Path) -> None:
    client = Client(tmp_path, public(search_s=60), token="")
    body = {"setting": LONG}
    job = client.post("solve", body).json()["job"]
    busy = client.post("solve", body)
    assert busy.status_code == 409 and busy.json()["job"] is None
    assert client.http.get("/start").json()["job"] is None
    client.http.post(f"/jobs/{job}/stop")
    client.followed(job)


def test_work_is_charged_while_it_runs() -> None:
    visitors = Visitors(public(work_s=1e-9))
    visitors.check("one")
    with visitors.charged("one"):
        with pytest.raises(OverBudget, match="try again in"):
            visitors.check("one")
        visitors.check("other")
    with pytest.raises(OverBudget):
        visitors.check("one")


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("testclient", "testclient"),
    ],
)
def test_visitors_are_counted_by_address_or_network(host: str, counted: str) -> None:
    assert counted_address(host) == counted
