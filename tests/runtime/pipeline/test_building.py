"""A rank fails while the pipeline is made, but its process continues: all others end, too."""

import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from synth.errors import RunFailure
from synth.families import generate
from synth.runtime.execution.transport.gloo.private_groups import PrivateGroups
from synth.runtime.execution.transport.rendezvous import Rendezvous
from synth.runtime.processes import ProcessIdentity

SOON_S = 10.0  # ranks would wait for each other for 60


class Broken(nn.Module):
    """Cannot be looked at."""

    def named_parameters(self, *arguments: Any, **options: Any) -> Iterator[tuple[str, Any]]:
        raise ValueError("the module that raises")


class Late(nn.Module):
    """Fails once it is run."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("the module that raises")


def fail_to_build(rank: int, size: int, what: str, failing: int) -> tuple[str, float]:
    """Return the error, and after how many seconds it came; a rank that failed lives on."""
    from synth.runtime import pipeline
    from synth.runtime.execution.transport.gloo import eager_links
    from synth.runtime.pipeline import connections

    name = "chimera" if what == "shared" else "1f1b"
    given: dict[str, Any] = {"schedule": generate(name, size, 4), "loss": nn.functional.mse_loss}
    held = [stage for stage, _ in given["schedule"].placement.held[rank]]
    given["stages"] = {stage: nn.Linear(4, 4) for stage in held}
    undo = pytest.MonkeyPatch()
    if rank == failing:
        _break(what, given, undo, connections, eager_links)
    world: Any = dist.group.WORLD
    store, before = world.get_group_store(), time.monotonic()
    try:
        made = pipeline.Pipeline(**{"timeout_s": 60, **given})
        x = torch.ones(4, 4)
        made.step(made.split(x, targets=x))
    except Exception as error:
        seconds = time.monotonic() - before
        store.set(f"failed-{rank}", "-")
        store.wait([f"failed-{r}" for r in range(size)])
        said = f"{type(error).__name__}: {error}"
        return "\n".join([said, *getattr(error, "__notes__", [])]), seconds
    finally:
        undo.undo()
    return "nothing failed", 0.0


def _break(
    what: str, given: dict[str, Any], patch: pytest.MonkeyPatch, connections: Any, links: Any
) -> None:
    """Make one rank's part of the building fail."""
    (stage, *others) = given["stages"]
    if what == "file":
        given["schedule"] = "no-such-plan.json"
    elif what == "undecodable":
        given["schedule"] = "no-such-plan\udcff"  # how a path comes that is no UTF-8
    elif what == "number":
        given["stages"] = {99: nn.Linear(4, 4)}
    elif what == "module":
        given["stages"] = {stage: Broken()}
    elif what == "tied":
        given["tied"] = {"table": "no parameter"}
    elif what == "timeout_s":
        given["timeout_s"] = -1
    elif what == "loss":
        given["loss"] = nn.MSELoss
    elif what == "shared":
        given["stages"] = {s: nn.Sequential(given["stages"][stage]) for s in (stage, *others)}
    elif what == "sockets":
        patch.setattr(links, "most_bytes", _refuse)
    elif what == "last":
        patch.setattr(connections, "Executor", _refuse)
    elif what == "trial":
        given["stages"] = {stage: Late()}


def _refuse(*arguments: Any, **options: Any) -> None:
    raise OSError("too many open files")


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("file", "cannot read no-such-plan.json"),
        ("undecodable", "cannot read no-such-plan"),
        ("number", "it was given modules for [99]"),
        ("module", "ValueError: the module that raises"),
        ("tied", "tied['table'] is 'no parameter'; give a parameter, or a list of them"),
        ("timeout_s", "timeout_s is -1; give a number of seconds above 0"),
        ("loss", "loss is the class MSELoss; give an instance, such as MSELoss()"),
        ("shared", "share a parameter and have copies on other ranks"),
        ("sockets", "OSError: too many open files"),
        ("last", "OSError: too many open files"),  # the others are through, and in their first step
    ],
)
@pytest.mark.parametrize(("size", "failing"), [(2, 0), (2, 1), (4, 2)])
def test_ranks_that_wait_for_one_that_cannot_build_are_told_which_and_why(
    pool: Any, what: str, cause: str, size: int, failing: int
) -> None:
    found = pool.run(fail_to_build, size, what, failing)
    for rank, (said, seconds) in enumerate(found):
        assert seconds < SOON_S
        assert cause in said
        if rank == failing:
            assert f"on rank {rank} of the pipeline, while it was made" in said
        else:
            stopped = f"rank {rank} (cannot continue: |failed in call 1 of its pipeline, step.*; )"
            assert re.search(f"{stopped}rank {failing} failed: ", said)


def test_a_module_that_raises_at_its_trial_ends_all_ranks(pool: Any) -> None:
    for said, seconds in pool.run(fail_to_build, 2, "trial", 0):
        assert "stage 0 cannot be run on what it is given: ValueError: the module that" in said
        assert seconds < SOON_S


def build_unlike(rank: int, size: int) -> str:
    from synth.errors import Mismatch
    from synth.runtime.pipeline import Pipeline

    schedule = generate("1f1b" if rank < 2 else "gpipe", size, 4)
    with pytest.raises(Mismatch) as caught:
        Pipeline(schedule, nn.Linear(4, 4), loss=nn.functional.mse_loss, timeout_s=60)
    return str(caught.value)


def test_ranks_with_unlike_schedules_are_named(pool: Any) -> None:
    for said in pool.run(build_unlike, 4):
        assert said.startswith("ranks 2, 3 have another schedule than rank 0")


def build_again(rank: int, size: int) -> Any:
    from synth.runtime.pipeline import Pipeline

    schedule, x = generate("1f1b", size, 2), torch.ones(2, 4)
    with pytest.raises(Exception):  # noqa: B017 - what each rank says is another test's
        Pipeline("no-such-plan.json" if rank else schedule, nn.Linear(4, 4), timeout_s=60)
    pipeline = Pipeline(schedule, nn.Identity(), loss=nn.functional.mse_loss, timeout_s=60)
    loss = pipeline.step(pipeline.split(x, targets=x))
    return None if loss is None else loss.item()


def test_another_pipeline_can_be_made_in_the_same_processes(pool: Any) -> None:
    assert pool.run(build_again, 2) == [None, 0.0]


def come_alone(rank: int, size: int) -> str:
    from synth.errors import RunFailure
    from synth.runtime.execution.transport.groups import Group

    group = Group.world(timeout_s=0.5)
    if rank == 0:
        with pytest.raises(RunFailure) as caught:
            group.gather("word")
        return str(caught.value)
    return ""


def test_who_does_not_come_is_named_when_time_has_run_out(pool: Any) -> None:
    assert pool.run(come_alone, 3)[0].startswith("rank 0 waited 0.5 s for ranks 1, 2; every rank")


def test_of_several_causes_the_first_one_stands_and_any_text_is_one() -> None:
    store = HashStore()
    meetings = [Rendezvous(store, rank, 1.0) for rank in range(3)]
    meetings[1].fail("cannot read \udcff")
    meetings[0].fail("another")
    assert [rendezvous.failure() for rendezvous in meetings] == [
        "rank 1 failed: cannot read ?",
        None,
        "rank 1 failed: cannot read ?",
    ]


class EndsAfterItsAnnouncement(ProcessIdentity):
    """Fails just when its process is looked at: announces that, and has ended."""

    @property
    def has_ended(self) -> bool:
        failing.fail("rank 1 is gone")
        return True


STORE = HashStore()
failing = Rendezvous(STORE, 0, 1.0)


def test_a_rank_that_ended_after_it_announced_why_is_not_the_cause() -> None:
    left = {0: EndsAfterItsAnnouncement.own()}
    remaining = Rendezvous(STORE, 2, 1.0, neighbours=left)
    cause = "rank 0 failed: rank 1 is gone"
    assert remaining.cause_of(ConnectionError("Connection closed by peer")) == cause
    failing.withdraw()
    with pytest.raises(RunFailure, match=f"^rank 2 cannot continue: {cause}$"):
        remaining.meet("here", [0, 2])


def test_who_sees_that_a_process_has_ended_tells_the_others() -> None:
    store = HashStore()
    gone = {1: ProcessIdentity.own()._replace(started="0")}
    alone = Rendezvous(store, 0, 60.0, neighbours=gone)
    with pytest.raises(RunFailure, match=r"rank 1 is gone: its process \d+ has ended$") as caught:
        alone.meet("here", [0, 1])
    told = Rendezvous(store, 2, 1.0).failure()
    assert told is not None
    assert str(caught.value) == f"rank 0 cannot continue: {told}"


class Slow(HashStore):
    """Rank 1 comes just after rank 0 has looked."""

    def check(self, keys: list[str]) -> bool:
        there = super().check(keys)
        self.set("here-1", "word")
        return there


def test_who_comes_when_time_has_just_run_out_has_come() -> None:
    assert Rendezvous(Slow(), 0, -1.0).meet("here", [0, 1]) == ["", "word"]


def fail_with_sockets(rank: int, size: int) -> None:
    from synth.runtime.execution.transport.gloo.eager_links import EagerLinks
    from synth.runtime.execution.transport.groups import Group

    group, link = Group.world(timeout_s=60), (0, 1)
    links = EagerLinks(group, [link], {link: 1}, 60)
    world: Any = dist.group.WORLD
    store = world.get_group_store()
    if rank == 0:
        with pytest.raises(ValueError), group.building():
            raise ValueError("what comes after the sockets")
        store.wait(["told"])
        assert links.senders  # they live on
    else:
        with pytest.raises(RuntimeError, match="Connection closed by peer, rank 0"):
            links.receivers[link].receive((torch.empty(1),)).wait()
        store.set("told", "-")


def test_who_fails_after_the_sockets_are_connected_cuts_them(pool: Any) -> None:
    pool.run(fail_with_sockets, 2)


def run_out_of_files(rank: int, size: int) -> tuple[str, bool]:
    """Return the error, and True if all connected ends are closed afterwards."""
    from synth.runtime.execution.transport.gloo import eager_links
    from synth.runtime.execution.transport.groups import Group

    made: list[socket.socket | None] = []
    connected = eager_links._connected

    def connect(*arguments: Any) -> socket.socket | None:
        if made and rank == 0:
            raise OSError("too many open files")
        made.append(connected(*arguments))
        return made[-1]

    group, links = Group.world(timeout_s=60), [(a, b) for a in range(3) for b in range(3) if a != b]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Exception) as caught:
        patch.setattr(eager_links, "_connected", connect)
        with group.building():
            eager_links.EagerLinks(group, links, dict.fromkeys(links, 1), 60)
    return str(caught.value), all(end is None or end.fileno() < 0 for end in made)


def test_sockets_are_closed_when_another_one_cannot_be_made(pool: Any) -> None:
    for said, closed in pool.run(run_out_of_files, 3):
        assert "too many open files" in said
        assert closed


def test_a_rank_that_fails_after_it_connected_is_named_by_those_that_still_connect() -> None:
    store = HashStore()
    groups = [PrivateGroups(Rendezvous(store, rank, 0.3)) for rank in range(2)]
    groups[1].rendezvous.meet("group-0-1-", [1])  # comes, but never connects
    groups[1].rendezvous.fail("no room")
    with pytest.raises(RunFailure, match=r"^rank 0 cannot connect: rank 1 failed: no room$"):
        groups[0].among((0, 1))
