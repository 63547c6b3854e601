"""Calls that all ranks of a pipeline make together: an error on one rank ends the call on all."""

from collections.abc import Iterator
from contextlib import contextmanager

from synth.errors import RunFailure

from ..execution.transport.channels import Channels
from ..execution.transport.rank_group import Refused
from .groups import PipelineGroups


class JointCalls:
    """Guards such calls on one rank."""

    def __init__(self, groups: PipelineGroups, channels: Channels) -> None:
        """Prepare a rank.

        Args:
            groups: to whose ranks a failure is announced.
            channels: aborted after a failure, so that no other rank waits for this one.
        """
        self._groups, self._channels = groups, channels
        self._is_broken = False

    def end(self) -> None:
        """Refuse all further calls."""
        self._is_broken = True

    @contextmanager
    def call(self) -> Iterator[None]:
        """Guard a call.

        Raises:
            RunFailure: an earlier call failed, or there are to be no more; or this one failed, and
                another rank failed before.
        """
        if self._is_broken:
            raise RunFailure(
                "a step of this pipeline has failed, and transfers of it are still open, or it was "
                "closed; end the process, or make a new process group and a new pipeline"
            )
        self._groups.withdraw()
        try:
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
