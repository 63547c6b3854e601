"""A pytest plugin that measures the processor time of each test, that of its processes included.

    python -m pytest -p tests.cpu_times --cpu-times tests/durations.json

Writes the times, which `tests/conftest.py` reads. Of tests that were not run the file keeps what it
has.

Processor time and not the clock's, so that other work on the machine changes little.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import LONGEST_ALONE_S, is_slow, load_durations

# Shorter ones are not listed.
LISTED_S = 0.1

_PROPERTY = "cpu_s"
_TICKS = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", type=Path, help="the file to write")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--cpu-times")
    if path is not None:
        times = _Times()
        config.pluginmanager.register(times)
        config.pluginmanager.register(_List(times, path))


class _Time(NamedTuple):
    """Processor time of a test in seconds, with its fixtures."""

    cpu_s: float
    is_slow: bool


class _Times:
    """Measures in each worker, and collects where the reports of all workers come in."""

    def __init__(self) -> None:
        self.found: dict[str, _Time] = {}
        self._before_s = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._before_s = used_s()
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":
            cpu_s = round(used_s() - self._before_s, 1)
            found = (cpu_s, is_slow(item))
            item.user_properties.append((_PROPERTY, found))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if report.when == "teardown" and name == _PROPERTY:
                found: Any = value
                self.found[report.nodeid] = _Time(*found)


class _List:
    """Writes the list at the end, and names what `make test` had better be spared."""

    def __init__(self, times: _Times, path: Path) -> None:
        self._times, self._path = times, path

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        found = self._times.found
        before = load_durations(self._path)
        listed = {name: cpu_s for name, cpu_s in before.items() if _exists(name)}
        listed |= {name: time.cpu_s for name, time in found.items()}
        kept = {name: cpu_s for name, cpu_s in sorted(listed.items()) if cpu_s >= LISTED_S}
        told = {"cores": os.cpu_count(), "cpu_s": kept}
        self._path.write_text(json.dumps(told, indent=1) + "\n")
        every_s = sum(time.cpu_s for time in found.values())
        terminalreporter.write_line(f"{every_s:.0f} s of processor time in all")
        for name, time in sorted(found.items(), key=lambda each: -each[1].cpu_s):
            if time.cpu_s > LONGEST_ALONE_S and not time.is_slow:
                terminalreporter.write_line(f"{time.cpu_s:6.1f} s and not marked slow: {name}")


def _exists(name: str) -> bool:
    """Return True if the file of a test is still there."""
    return Path(name.partition("::")[0]).exists()


def used_s() -> float:
    """Processor time of this process and of all below it, ended ones included."""
    own = os.times()
    return sum(own[:4]) + sum(used for _, used in _below(os.getpid()))


def _below(process: int) -> list[tuple[int, float]]:
    stats = {int(name): _stat(name) for name in os.listdir("/proc") if name.isdigit()}
    found, added = {process}, True
    while added:
        more = {pid for pid, stat in stats.items() if stat and stat[0] in found} - found
        found |= more
        added = bool(more)
    return [stat for pid in found - {process} if (stat := stats[pid])]


def _stat(process: str) -> tuple[int, float] | None:
    """A process's parent, and the time that it and its ended children used; none: it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), sum(map(int, fields[11:15])) / _TICKS
