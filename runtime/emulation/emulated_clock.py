"""The time of an emulated device: the host's clock, corrected for late timers of the system.

A sleeping process wakes up late: by 50 µs on an idle machine, by milliseconds on a busy one. A real
device would not. Therefore each rank keeps track of its lateness: its next op ends as if it had
started on time, and its messages carry the lateness with which they were sent. Lateness is
compensated and does not add up. Everything else, such as the executor's own work and the transfers
of this machine, takes its real time.

    device   |··· op ···|··· op ···|
    host     |··· op ····~|·· op ··~|      ~ woken late

Each thread has a lateness of its own: that of the rank's program, and those of the links that send
beside it.
"""

import ctypes
import sys
import threading
import time

_PR_SET_TIMERSLACK = 29
# A shorter wait did not really wait: the data had arrived already.
_WAITED_NS = 200_000


def now_ns() -> int:
    """Return the host's monotonic clock, which all processes of a machine share."""
    return time.perf_counter_ns()


def after(moment_ns: int, duration_us: int) -> int:
    """Return the moment `duration_us` later."""
    return moment_ns + duration_us * 1000


class EmulatedClock(threading.local):
    """The time of one rank's device, as a thread sees it; all moments are in nanoseconds."""

    def __init__(self) -> None:
        self.late_ns = 0  # of each thread that uses it
        if sys.platform == "linux":  # ask to be woken on time, not when it saves power
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def begin(self) -> None:
        """An iteration starts; now it is as late as it is."""
        self.late_ns = 0

    def now_ns(self) -> int:
        """The device's time."""
        return now_ns() - self.late_ns

    def follow(self, moment_ns: int) -> None:
        """Go on from another thread's moment, at which it let this one run."""
        self.late_ns = max(0, now_ns() - moment_ns)

    def rewind(self) -> None:
        """Go back before all moments: the next wait alone says how late this thread is."""
        self.late_ns = now_ns()

    def run(self, duration_us: int) -> None:
        """Let the duration of an op pass."""
        self.sleep_until(after(self.now_ns(), duration_us))

    def sleep_until(self, moment_ns: int) -> None:
        """Sleep until a moment, if it has not passed."""
        if moment_ns <= self.now_ns():
            return
        while (left_ns := moment_ns - now_ns()) > 0:
            time.sleep(left_ns / 1e9)
        self.late_ns = now_ns() - moment_ns

    def arrived(self, due_ns: int, asked_ns: int, sender_late_ns: int) -> None:
        """Go on after a wait for another rank.

        Args:
            due_ns: when, by the plan's links, what was waited for could be there.
            asked_ns: the start of the wait, by the host's clock.
            sender_late_ns: the lateness with which the other rank sent.
        """
        came_ns = now_ns()
        if came_ns - asked_ns < _WAITED_NS:
            self.sleep_until(due_ns)
            return
        moment_ns = max(asked_ns - self.late_ns, due_ns, came_ns - sender_late_ns)
        self.late_ns = max(0, came_ns - moment_ns)
        self.sleep_until(moment_ns)

    def resumed(self, due_ns: int, asked_ns: int, came_ns: int, sender_late_ns: int) -> None:
        """Go on after a wait for any of several messages, which has just ended.

        Args:
            due_ns: when, by the plan's links, the first message could be there; not in the future.
            asked_ns: the start of the wait, by the host's clock.
            came_ns: when that message came, by the host's clock.
            sender_late_ns: the lateness with which the other rank sent.
        """
        over_ns = now_ns()
        if over_ns - asked_ns < _WAITED_NS:
            self.late_ns = min(self.late_ns, over_ns - due_ns)
            return
        moment_ns = max(asked_ns - self.late_ns, due_ns, came_ns - sender_late_ns)
        self.late_ns = max(0, over_ns - moment_ns)
