"""A pytest plugin that writes the processor time of each test, that of its processes included.

    python -m pytest -p tests.cpu_times --cpu-times tests/durations.json

Processor time and not the clock's, so that other work on the machine changes little. Of tests that
were not run the file keeps what it has. `tests/conftest.py` reads it.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONGEST_ALONE_S, is_slow, load_durations

# Shorter ones are not listed.
LISTED_S = 0.5

_PROPERTY = "cpu_s"
_TICKS = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", type=Path, required=True, help="the file to write")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Times(config.getoption("--cpu-times")))


class _Times:
    """Measures in each worker, and collects where the reports of all workers come in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, float] = {}
        self._slow: set[str] = set()
        self._before_s = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._before_s = used_s()
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":
            found = round(used_s() - self._before_s, 1)
            item.user_properties.append((_PROPERTY, (found, is_slow(item))))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if report.when == "teardown" and name == _PROPERTY:
                found: Any = value
                self._found[report.nodeid], slow = found
                self._slow |= {report.nodeid} if slow else set()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write the list, and name what `make test` had better be spared."""
        before = load_durations(self._path)
        listed = {name: cpu_s for name, cpu_s in before.items() if _exists(name)} | self._found
        kept = {name: cpu_s for name, cpu_s in sorted(listed.items()) if cpu_s >= LISTED_S}
        told = {"cores": os.cpu_count(), "cpu_s": kept}
        self._path.write_text(json.dumps(told, indent=1) + "\n")
        terminalreporter.write_line(f"{sum(self._found.values()):.0f} s of processor time in all")
        for name, cpu_s in sorted(self._found.items(), key=lambda each: -each[1]):
            if cpu_s > LONGEST_ALONE_S and name not in self._slow:
                terminalreporter.write_line(f"{cpu_s:6.1f} s and not marked slow: {name}")


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
