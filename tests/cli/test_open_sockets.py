"""Nothing of a run on one machine can be reached by another user: every socket and file of it."""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from synth.profile.workload import Workload
from tests.cli.conftest import TINY, make_run_plan
from tests.cli.test_faults import COMMAND, started
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


def test_a_run_listens_on_no_address_of_the_machine_and_its_launcher_on_none_at_all(
    text: Path, tmp_path: Path
) -> None:
    workload = Workload(model="gpt", arguments=TINY, micro_batch_size=2, sequence_length=32)
    plan = make_run_plan(workload, (3, 3), tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir(mode=0o700)
    with started(COMMAND, plan, "--data", text, "--steps", 100000, temporary=temporary) as process:
        read_until(process, "step ")
        workers = workers_of(process.pid)
        assert len(workers) == 2
        for pid in (process.pid, *workers):
            judge_sockets(pid, is_launcher=pid == process.pid)
            judge_files(pid, temporary)


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


def test_ranks_meet_in_the_folder_and_torchruns_store_is_not_made(
    text: Path, tmp_path: Path
) -> None:
    """The environment of the ranks names no address that could be connected to."""
    workload = Workload(model="gpt", arguments=TINY, micro_batch_size=2, sequence_length=32)
    plan = make_run_plan(workload, (3, 3), tmp_path)
    with started(COMMAND, plan, "--data", text, "--steps", 100000) as process:
        read_until(process, "step ")
        for pid in workers_of(process.pid):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            assert b"MASTER_PORT=0" in environment
            assert b"TORCHELASTIC_USE_AGENT_STORE=False" in environment
