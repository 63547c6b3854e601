"""Calls that all ranks of a pipeline make together: an error on one rank ends the call on all."""

from collections.abc import Iterator
from contextlib import contextmanager

from synth.errors import RunFailure

from ..execution.base.channels import Channels
from ..execution.transport.calls import CallKind, CallNotes
from ..execution.transport.rank_group import Refused, named_failure
from .groups import PipelineGroups


class JointCalls:
    """Guards such calls on one rank."""

    def __init__(self, groups: PipelineGroups, channels: Channels, notes: CallNotes) -> None:
        """Prepare a rank.

        Args:
            groups: to whose ranks a failure is announced.
            channels: aborted after a failure, so that no other rank waits for this one.
            notes: by which the ranks agree on each call.
        """
        self._groups, self._channels, self._notes = groups, channels, notes
        self._is_broken = False

    def end(self) -> None:
        """Refuse all further calls."""
        self._is_broken = True

    @contextmanager
    def call(self, kind: CallKind, *, meets: bool, argument: float = 0.0) -> Iterator[None]:
        """Guard a call.

        Args:
            kind: of the call.
            argument: a number that all ranks are to give.
            meets: True if it may begin with a collective.

        Raises:
            RunFailure: an earlier call failed, or there are to be no more; or this one failed, and
                another rank failed before; or another rank makes another call.
        """
        if self._is_broken:
            raise RunFailure(
                "a step of this pipeline has failed, and transfers of it are still open, or it was "
                "closed; end the process, or make a new process group and a new pipeline"
            )
        self._groups.withdraw()
        try:
            with self._agreed(kind, argument, meets=meets):
                yield
        except Refused:
            raise
        except BaseException as error:
            self._is_broken = True
            self._groups.announce(error)
            self._channels.abort()
            explained = self._groups.explain(error)
            if explained is not error:
                raise explained from error
            raise

    @contextmanager
    def _agreed(self, kind: CallKind, argument: float, *, meets: bool) -> Iterator[None]:
        """Agree with the other ranks on a call, which all of them may refuse together."""
        pipeline = self._groups.pipeline
        with named_failure(pipeline.rank, pipeline.rendezvous):
            self._notes.begin(kind, argument)
        if meets:
            self._notes.check_all()
        try:
            yield
        except Refused:
            self._notes.end()
            raise
        self._notes.end()
