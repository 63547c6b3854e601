"""The program of a child process (see `child_process`): it takes in tasks and ends with its parent.

The child leaves SIGINT to its parent: Ctrl-C in a terminal reaches every process of the group.
"""

import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

# Interval at which the parent's life is checked. Usually the end of the pipe shows its death, but a
# process forked from the parent may hold the pipe open, also in the middle of a task.
_WATCH_S = 0.5


class ParentProcess:
    """The parent: three threads receive its tasks, send it reports and see to it that it lives.

    Attributes:
        stop: set if the present task is to stop.
    """

    def __init__(self, pid: int, connection: Connection) -> None:
        self._pid, self._connection = pid, connection
        self.tasks: SimpleQueue[Any] = SimpleQueue()
        self.stop = threading.Event()
        self._reports: SimpleQueue[Any] = SimpleQueue()
        for work in (self._receive, self._send, self._watch):
            threading.Thread(target=_or_end, args=(work,), daemon=True).start()

    def report(self, message: Any) -> None:
        """Send a message after those in flight, without waiting for a busy parent."""
        self._reports.put(message)

    def _send(self) -> None:
        while True:
            report = self._reports.get()
            try:
                self._connection.send(report)
            except OSError:  # the parent is gone
                os._exit(0)

    def _receive(self) -> None:
        while True:
            try:
                task = self._connection.recv()
            except (EOFError, OSError):
                os._exit(0)
            if task is None:
                self.stop.set()
            else:
                self.stop.clear()
                self.tasks.put(task)

    def _watch(self) -> None:
        while os.getppid() == self._pid:
            time.sleep(_WATCH_S)
        os._exit(0)


def _or_end(work: Callable[[], None]) -> None:
    """Run the work of a thread without which the process is of no use."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main() -> None:
    """Serve the parent: its process id, the pipe's descriptor and the function are arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pid, descriptor, serve = sys.argv[1:4]
    module, name = serve.split(":")
    function = getattr(importlib.import_module(module), name)
    function(ParentProcess(int(pid), Connection(int(descriptor))))
