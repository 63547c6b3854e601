"""A rank that ends while the others agree on a checkpoint: one clear error, no cause of gloo's."""

from typing import Any

import pytest
import torch.distributed as dist

from synth.errors import RunFailure
from synth.runtime.checkpoint.agreement import agree, together
from synth.runtime.execution.transport import objects

GLOO = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:45678. This may be caused by a failure of another process"
)


@pytest.mark.parametrize("act", [agree, together])
def test_a_lost_connection_is_told_with_the_rank_and_the_place(
    monkeypatch: pytest.MonkeyPatch, act: Any
) -> None:
    def lost(*arguments: Any) -> None:
        raise RuntimeError(GLOO)

    monkeypatch.setattr(dist, "broadcast", lost)
    monkeypatch.setattr(dist, "all_gather", lost)
    monkeypatch.setattr(objects, "_get_object_coll_device", lambda group: "cpu")
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    arguments = (lambda: None, "cannot read it", None) if act is agree else (lambda: None, None)
    with pytest.raises(RunFailure) as caught:
        act(*arguments)
    said = str(caught.value)
    assert said.startswith("rank 1 failed where all ranks agree on a checkpoint: Connection closed")
    assert "/pytorch" not in said and "may be caused" not in said
