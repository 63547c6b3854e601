"""Nothing of a run on one machine can be reached by another user: every socket and file of it."""

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.small_runs import MODEL, plan_of_own, started
from tests.cli.worker_processes import read_until, workers_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="sockets are read in /proc"),
]

LISTENING = "0A"
_IPV6_LOOPBACK = "00000000000000000000000001000000"
_IPV6_OF_IPV4_LOOPBACK = re.compile("0000000000000000FFFF0000......7F")


def is_loopback(address: str) -> bool:
    """True for an address of /proc/net/tcp or tcp6, in hexadecimal, that is on this machine."""
    if len(address) == 8:
        return address.endswith("7F")
    return address == _IPV6_LOOPBACK or _IPV6_OF_IPV4_LOOPBACK.fullmatch(address) is not None


def open_files(pid: int) -> Iterator[str]:
    """What the descriptors of a process refer to: paths, `socket:[inode]`."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield os.readlink(link)
        except OSError:
            continue


def inet_sockets(pid: int) -> dict[str, tuple[str, str, str]]:
    """By inode the local address, the port and the state of all TCP and UDP sockets."""
    found = {}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            address, _, port = fields[1].partition(":")
            found[fields[9]] = address, port, fields[3]
    return found


# Each rank writes the environment that it finds.
WRITES = f"""{MODEL}
import json, os
from pathlib import Path
if "RANK" in os.environ:
    name = f"environment-{{os.environ['RANK']}}.json"
    Path(__file__).with_name(name).write_text(json.dumps(dict(os.environ)))
"""


class Running(NamedTuple):
    """A run of two ranks: its launcher, its temporary files and what its ranks wrote."""

    launcher: int
    temporary: Path
    written: Path


@pytest.fixture(scope="module")
def run(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("run")
    plan = plan_of_own(WRITES, folder)
    temporary = folder / "temporary"
    temporary.mkdir(mode=0o700)
    arguments = (plan, "--data", text, "--steps", 1000000, "--trust")
    with started(*arguments, temporary=temporary) as process:
        read_until(process, "step ")
        yield Running(process.pid, temporary, folder)


def test_a_run_listens_on_no_address_of_the_machine_and_its_launcher_on_none_at_all(
    run: Running,
) -> None:
    workers = workers_of(run.launcher)
    assert len(workers) == 2
    for pid in (run.launcher, *workers):
        judge_sockets(pid, is_launcher=pid == run.launcher)
        judge_files(pid, run.temporary)


def judge_sockets(pid: int, *, is_launcher: bool) -> None:
    inodes = {name[8:-1] for name in open_files(pid) if name.startswith("socket:[")}
    mine = {inode: found for inode, found in inet_sockets(pid).items() if inode in inodes}
    assert all(is_loopback(address) for address, _, _ in mine.values()), mine
    if is_launcher:
        assert not mine
    abstract = [
        line.split()[-1]
        for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]
        if line.split()[6] in inodes and len(line.split()) > 7
    ]
    assert not [name for name in abstract if name.startswith("@")]  # these have no permissions


def judge_files(pid: int, temporary: Path) -> None:
    """Files that it has open for writing, and all of its temporary folder, are its user's alone."""
    held = [name for name in open_files(pid) if name.startswith("/") and "(deleted)" not in name]
    for name in held:
        if name.startswith(("/dev/shm/", "/tmp/")) and not name.startswith(str(temporary)):
            found = os.stat(name)
            assert found.st_uid == os.geteuid()
    folders = [path for path in temporary.iterdir() if path.name.startswith("synth-")]
    assert folders, "the run has a folder"
    for folder in folders:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.stat().st_uid == os.geteuid()
    assert list(temporary.glob("*/store-*")), "the ranks meet in a file"


def test_ranks_meet_in_the_folder_and_torchruns_store_is_not_made(run: Running) -> None:
    """The environment of the ranks names no address that could be connected to."""
    for rank in range(2):
        environment = json.loads((run.written / f"environment-{rank}.json").read_text())
        assert environment["MASTER_PORT"] == "0"
        assert environment["TORCHELASTIC_USE_AGENT_STORE"] == "False"
