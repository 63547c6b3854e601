"""Collective agreement: all ranks learn the answer or refusal of one, and act alike."""

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch.distributed as dist

from synth.errors import SynthError

from ..execution.transport.objects import broadcast_object, gather_objects
from ..execution.transport.rank_group import named_failure

T = TypeVar("T")


def agree(look: Callable[[], T], what: str, group: Any) -> T:
    """Return rank 0's answer, or raise its refusal, on all ranks; `what` names the action."""
    answer: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            answer[0] = look()
        except SynthError as error:
            answer[1] = error
        except OSError as error:
            answer[1] = SynthError(f"{what}: {error.strerror or error}")
        except Exception as error:
            answer[1] = _unexpected(error, 0)
    with of_checkpoints():
        answer = broadcast_object(answer, 0, group)
    if answer[1] is not None:
        raise answer[1]
    found: T = answer[0]
    return found


def together(work: Callable[[], T], group: Any) -> T:
    """Do each rank's part of an action; if a rank refuses, all of them raise the first refusal."""

    def gather(refusal: object) -> list[Any]:
        with of_checkpoints():
            return gather_objects(refusal, group)

    return done_by_all(work, gather, dist.get_rank())


def done_by_all(work: Callable[[], T], gather: Callable[[Any], list[Any]], rank: int) -> T:
    """Do this rank's part of a work; if a rank refuses, all of them raise the first refusal.

    Args:
        gather: returns the objects of all ranks, in order; all of them call it.

    Raises:
        SynthError: a rank could not do it.
    """
    refusal: SynthError | None = None
    try:
        done = work()
    except SynthError as error:
        refusal = error
    except OSError as error:
        refusal = SynthError(f"{error.filename}: {error.strerror or error}")
    except Exception as error:
        refusal = _unexpected(error, rank)
    first = next((error for error in gather(refusal) if error is not None), None)
    if first is not None:
        raise first
    return done


def of_checkpoints() -> AbstractContextManager[None]:
    """Within the block a lost connection is a `RunFailure` that says where this rank was."""
    where = "where all ranks agree on a checkpoint"
    return named_failure(dist.get_rank(), where=where)


def _unexpected(error: Exception, rank: int) -> SynthError:
    """Convert an unexpected error into one that can be sent to the ranks that wait."""
    traceback.print_exc()
    return SynthError(f"rank {rank} failed: {type(error).__name__}: {error}")
