"""Other names of families: those of papers and frameworks, in any case, and those of old versions.

`zero:v` is now `zero3:v`, `zero:v,zero-2` is `zero2:v`, and `zero:v,zero-1` is `zero1:v`. The last
two also took an `ahead`, which had no effect and is dropped.
"""

import re
from collections.abc import Collection

_STAGES = {"zero-1": "zero1", "zero-2": "zero2", "zero-3": "zero3"}

# Letters and digits of a name, and the family that it is: of the classes of PyTorch
# (torch.distributed.pipelining), the schedule modes of PaddlePaddle, and papers.
_ALIASES = {
    "dapple": "1f1b",  # Fan et al. 2021
    "pipedreamflush": "1f1b",  # Narayanan et al. 2021, PipeDream-2BW
    "onefoneb": "1f1b",
    "fthenb": "gpipe",  # PaddlePaddle
    "pipedream2bw": "2bw",
    "interleaved1f1b": "interleaved",
    "vpp": "interleaved",  # PaddlePaddle
    "loopedbfs": "breadth-first",
    "bfs": "breadth-first",
    "zbvzerobubble": "zb-v",
    "vzb": "zb-v",  # Qi et al. 2024, controllable memory
    "zerobubblev": "zb-v",
    "zerobubbleh1": "zb-h1",
    "zerobubbleh2": "zb-h2",
    "ddp": "data-parallel",
    "dp": "data-parallel",
    "fsdp": "zero3",
}


def current_name(name: str, families: Collection[str]) -> str:
    """Return the name that a family has here; other names are returned as they are.

    Case, hyphens and underscores of the family's name do not matter, nor the `Schedule` before
    names of PyTorch's classes.

    Args:
        name: of a family, with its options behind a colon.
        families: the names of all families.
    """
    base, colon, behind = name.partition(":")
    if base == "zero":
        return _of_zero(behind)
    plain = _plain(base).removeprefix("schedule")
    known = {_plain(family): family for family in families} | _ALIASES
    return f"{known[plain]}{colon}{behind.lower()}" if plain in known else name


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def _of_zero(behind: str) -> str:
    """Return the name of what was `zero` with options."""
    parts = behind.split(",") if behind else []
    named = [part for part in parts if part in _STAGES]
    family = _STAGES[named[0]] if named else "zero3"
    kept = [
        part
        for part in parts
        if part not in named[:1] and (family == "zero3" or not part.startswith("ahead="))
    ]
    return f"{family}:{','.join(kept)}" if kept else family
