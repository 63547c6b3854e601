"""Checkpoints changed at random: either refused with a message, or loaded as saved."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from synth.errors import SynthError
from synth.runtime.checkpoint.manifest import Manifest
from tests.runtime.checkpoint.test_checkpoint_integrity import Training
from tests.thorough.examples import Examples
from tests.thorough.mutations import corrupted, restructured


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of this process."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield
    dist.destroy_process_group()


def resealed(draw: random.Random, content: bytes) -> bytes:
    """A manifest with other values in it and a checksum that holds."""
    data = restructured(draw, json.loads(content))
    if not isinstance(data, dict):
        return json.dumps(data).encode()
    data["checksum"] = ""
    text = json.dumps(data, indent=1) + "\n"
    # The digest's line must be as the library writes it, wherever that key stands.
    from synth.runtime.checkpoint.manifest import _checksum_line, _digest

    line = re.escape(_checksum_line(""))
    return re.sub(line, lambda _: _checksum_line(_digest(text)), text, count=1).encode()


@pytest.mark.thorough(share=0.04)
def test_a_changed_checkpoint_is_refused_or_is_what_was_saved(
    alone: None, examples: Examples, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    saving = Training(0, str(folder))
    saving.save(1)
    saved = saving.numbers()
    del saving.checkpointer  # and its lock
    files = {path: path.read_bytes() for path in sorted((folder / "step-1").iterdir())}
    manifest = folder / "step-1" / "training.json"
    assert isinstance(Manifest.unsealed(files[manifest], "it"), Manifest)
    loading = Training(0, str(folder), resume=True)

    def check(draw: random.Random) -> None:
        path = draw.choice(list(files))
        is_resealed = path == manifest and draw.random() < 0.7
        change = resealed if is_resealed else corrupted
        path.write_bytes(change(draw, files[path]))
        try:
            loading.load()
        except SynthError as error:
            assert str(error)
        else:
            if not is_resealed:
                assert all(map(torch.equal, loading.numbers(), saved))
        finally:
            path.write_bytes(files[path])

    examples.each(check)
    assert loading.load() == 1
    assert all(map(torch.equal, loading.numbers(), saved))
