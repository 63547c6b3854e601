"""The machine, and the tests that need a CUDA device."""

import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from benchmarks.gpu.step import Where

_PACKAGES = ("torch", "triton", "transformers", "numpy", "ortools", "pydantic")


def machine(where: Where) -> dict[str, Any]:
    """Versions, and the device's properties."""
    found: dict[str, Any] = {"python": platform.python_version()}
    found |= {name: _version(name) for name in _PACKAGES}
    if where.device != "cuda":
        return found
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    return found | {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "free_bytes": free,
        "total_bytes": total,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }


def gpu_tests(where: Where) -> dict[str, Any]:
    """The tests marked `gpu`; without a device they are skipped."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    # With `small` only one file is read, which the tests of this script need not wait for.
    chosen = where.pick(["tests/runtime/training/test_staging.py"], ["tests/runtime"])
    ended = subprocess.run([*command, *chosen], capture_output=True, text=True)
    failed = re.findall(r"^FAILED (\S+)", ended.stdout, re.MULTILINE)
    last = ended.stdout.strip().splitlines()[-1:] or [ended.stderr[-500:]]
    return {"summary": last[0], "failed": failed, "said": ended.stdout[-3000:] if failed else ""}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
