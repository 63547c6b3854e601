"""Collectives of ranks that are threads of one process, with the methods of a process group."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, ReduceOp, ReduceOptions

from .exchange import Exchange, Exchanges, Parts


class _Call(NamedTuple):
    """One rank's part of a collective; all ranks must agree on everything but the contents."""

    name: str
    detail: Hashable
    tensors: Sequence[Tensor]

    @property
    def kinds(self) -> list[Any]:
        return [(tuple(t.shape), t.dtype, t.is_sparse) for t in self.tensors]


class _Work:
    """A collective in flight; `wait` writes its results."""

    def __init__(
        self, exchange: Exchange, rank: int, timeout_s: float, outputs: Sequence[Tensor]
    ) -> None:
        self._exchange, self._rank, self._timeout_s = exchange, rank, timeout_s
        self._outputs: Sequence[Tensor] | None = outputs

    @torch.no_grad()
    def wait(self) -> bool:
        """Return once the outputs hold the results.

        Raises:
            RuntimeError: another rank is gone, called something else, or did not come in time.
        """
        if self._outputs is not None:
            results = self._exchange.wait(self._rank, self._timeout_s)
            wanted = results if self._outputs else ()
            for output, result in zip(self._outputs, wanted, strict=True):
                output.copy_(result)
            self._outputs = None
        return True


class InProcessCollectives:
    """A group of some ranks; each call starts a collective and returns its work."""

    def __init__(
        self,
        exchanges: Exchanges,
        ranks: tuple[int, ...],
        rank: int,
        timeout_s: float,
        purpose: str,
    ) -> None:
        """Make the group of `ranks`; equal ranks and purpose share one group."""
        self._exchanges, self._ranks, self._rank = exchanges, ranks, rank
        self._timeout_s = timeout_s
        self._place = ranks, purpose

    def size(self) -> int:
        """Number of ranks."""
        return len(self._ranks)

    def rank(self) -> int:
        """The index of this rank in the group."""
        return self._ranks.index(self._rank)

    def allreduce(self, tensors: list[Tensor], op: Any = ReduceOp.SUM) -> _Work:
        """Add up tensors in place, or take their maximum."""
        return self._start("allreduce", op == ReduceOp.MAX, tensors, tensors)

    def allreduce_coalesced(self, tensors: list[Tensor]) -> _Work:
        """Add up many tensors in place."""
        return self._start("allreduce_coalesced", False, tensors, tensors)

    def broadcast(self, tensors: list[Tensor], options: BroadcastOptions) -> _Work:
        """Copy the tensors of the root rank to all."""
        root = self._ranks[options.rootRank]
        return self._start("broadcast", root, tensors, tensors)

    def reduce(self, tensors: list[Tensor], options: ReduceOptions) -> _Work:
        """Add up tensors in place on the root rank; the others' keep their values."""
        root = self._ranks[options.rootRank]
        outputs = tensors if self._rank == root else []
        return self._start("reduce", root, tensors, outputs)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor]) -> _Work:
        """Copy the tensors of all ranks to all, in rank order."""
        return self._start("allgather", None, inputs, outputs[0])

    def _start(
        self, name: str, detail: Hashable, tensors: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> _Work:
        call = _Call(name, detail, tensors)
        exchange = self._exchanges.join(self._place, self._ranks, self._rank, call, self._finish)
        return _Work(exchange, self._rank, self._timeout_s, outputs)

    @torch.no_grad()
    def _finish(self, calls: Parts) -> Parts:
        listed: list[_Call] = [calls[rank] for rank in self._ranks]
        _check_alike(self._ranks, listed)
        return dict.fromkeys(self._ranks, _results(listed, self._ranks))


def _results(calls: Sequence[_Call], ranks: tuple[int, ...]) -> list[Tensor]:
    """Compute the outputs, which are the same on every rank."""
    first = calls[0]
    if first.name == "allgather":
        return [call.tensors[0].clone() for call in calls]
    if first.name == "broadcast":
        root = calls[[*ranks].index(first.detail)]  # type: ignore[arg-type]
        return [tensor.clone() for tensor in root.tensors]
    each = zip(*(call.tensors for call in calls), strict=True)
    largest = first.name == "allreduce" and bool(first.detail)
    return [_reduced(tensors, largest=largest) for tensors in each]


def _reduced(tensors: Sequence[Tensor], *, largest: bool) -> Tensor:
    """Combine in rank order, so that the result is deterministic."""
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        result = torch.maximum(result, tensor) if largest else result.add_(tensor)
    return result


def _check_alike(ranks: tuple[int, ...], calls: Sequence[_Call]) -> None:
    for rank, call in zip(ranks, calls, strict=True):
        if (call.name, call.detail, call.kinds) != (calls[0].name, calls[0].detail, calls[0].kinds):
            raise RuntimeError(
                f"rank {rank} calls {call.name} of {call.kinds} where rank {ranks[0]} calls "
                f"{calls[0].name} of {calls[0].kinds}"
            )
