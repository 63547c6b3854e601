"""SIGTERM: the first requests a graceful end, a second one ends the run at once."""

import signal
from pathlib import Path

from synth.runtime.training.stopping import StopRequest, passing_on_sigterm


def test_two_signals_at_once_are_one_and_a_later_one_is_a_second(tmp_path: Path) -> None:
    clock, seconds = [10.0], []
    with passing_on_sigterm(tmp_path, lambda: seconds.append(clock[0]), lambda: clock[0]):
        asked = StopRequest(tmp_path)
        assert not asked()
        signal.raise_signal(signal.SIGTERM)  # `timeout` signals a process, and then its group
        signal.raise_signal(signal.SIGTERM)
        assert asked() and seconds == []
        clock[0] = 12.0
        signal.raise_signal(signal.SIGTERM)
        assert seconds == [12.0]


def test_a_rank_takes_a_signal_of_its_own_as_such_a_request(tmp_path: Path) -> None:
    asked, before = StopRequest(tmp_path), signal.getsignal(signal.SIGTERM)
    with asked.listening():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert asked()
    assert signal.getsignal(signal.SIGTERM) is before
