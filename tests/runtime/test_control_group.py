"""The memory that control groups leave a process, read from files as Linux has them."""

from pathlib import Path

import pytest
import torch

import synth
from synth.errors import SynthError
from synth.runtime import free_memory
from synth.runtime.control_group import free_in_control_group
from synth.runtime.rehearsal import device_memory

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def version_2(folder: str, limit: object, used: int, cached: int = 0) -> dict[str, str]:
    at = f"sys/fs/cgroup/{folder}"
    return {
        f"{at}/memory.max": f"{limit}\n",
        f"{at}/memory.current": f"{used}\n",
        f"{at}/memory.stat": f"anon {used - cached}\ninactive_file {cached}\n",
    }


def version_1(folder: str, limit: int, used: int, cached: int = 0) -> dict[str, str]:
    at = f"sys/fs/cgroup/memory/{folder}"
    return {
        f"{at}/memory.limit_in_bytes": f"{limit}\n",
        f"{at}/memory.usage_in_bytes": f"{used}\n",
        f"{at}/memory.stat": f"cache {cached}\ntotal_inactive_file {cached}\n",
    }


def test_a_limit_of_version_2_leaves_what_is_not_used_or_can_be_dropped(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/\n", **version_2("", 8 * GIB, 3 * GIB, GIB)})
    assert free_in_control_group(tmp_path) == 6 * GIB


def test_the_limit_of_a_group_around_the_own_one_holds_too(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/pod/one\n"})
    write(tmp_path, version_2("pod/one", "max", GIB))
    write(tmp_path, version_2("pod", 4 * GIB, 3 * GIB))
    assert free_in_control_group(tmp_path) == GIB


def test_a_limit_of_version_1_is_read_beside_an_empty_version_2(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "9:cpu,cpuacct:/job\n4:memory:/job\n0::/\n"})
    write(tmp_path, version_1("job", 5 * GIB, 2 * GIB, GIB))
    assert free_in_control_group(tmp_path) == 4 * GIB


def test_a_container_that_sees_its_group_as_the_root_is_limited(tmp_path: Path) -> None:
    """In version 1 the process's file names the group of the host, which is mounted as the root."""
    write(tmp_path, {"proc/self/cgroup": "4:memory:/docker/abc\n", **version_1("", 2 * GIB, GIB)})
    assert free_in_control_group(tmp_path) == GIB
    write(tmp_path, {"proc/self/cgroup": "4:memory:/../other\n"})
    assert free_in_control_group(tmp_path) == GIB


def test_without_control_groups_or_limits_nothing_is_known(tmp_path: Path) -> None:
    assert free_in_control_group(tmp_path) is None
    write(tmp_path, {"proc/self/cgroup": "0::/\n", **version_2("", "max", GIB)})
    assert free_in_control_group(tmp_path) is None


def test_of_the_machine_and_the_control_group_the_smaller_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:   2048 kB\n")
    monkeypatch.setattr(free_memory, "_MEMINFO", str(meminfo))
    cpu = torch.device("cpu")
    for in_group, free in ((1 << 20, 1 << 20), (1 << 30, 2 << 20), (None, 2 << 20)):
        monkeypatch.setattr(free_memory, "free_in_control_group", lambda given=in_group: given)
        assert free_memory.available_bytes(cpu) == free


def test_nothing_fits_into_a_full_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = synth.simulate("1f1b", "gpt-bytes-cpu", ranks=2, micro_batches=2)
    monkeypatch.setattr(device_memory, "available_bytes", lambda device: 0)
    with pytest.raises(SynthError, match=r"rank 0 needs .* and cpu has 0 B free"):
        device_memory.check_fits(plan, [0, 1], torch.device("cpu"))
    monkeypatch.setattr(device_memory, "available_bytes", lambda device: None)
    device_memory.check_fits(plan, [0, 1], torch.device("cpu"))
