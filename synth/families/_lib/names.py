"""Other names of families: those of papers and frameworks, in any case, and those of old versions.

`zero:v` is now `zero3:v`, `zero:v,zero-2` is `zero2:v`, and `zero:v,zero-1` is `zero1:v`. The last
two also took an `ahead`, which had no effect and is dropped.
"""

import re
from collections.abc import Collection

_STAGES = {"zero-1": "zero1", "zero-2": "zero2", "zero-3": "zero3"}

# Names of papers and frameworks, and the family here, with its options where the name implies them.
# PyTorch's are the classes of torch.distributed.pipelining, without `Schedule`.
OTHER_NAMES = {
    "DAPPLE": "1f1b",  # Fan et al. 2021
    "PipeDream-Flush": "1f1b",  # Narayanan et al. 2021, PipeDream-2BW
    "OneFOneB": "1f1b",
    "FThenB": "gpipe",  # PaddlePaddle
    "PipeDream-2BW": "2bw",
    "1F1B-Int": "interleaved",  # BitPipe, arXiv 2410.19367
    "1F1B-Interleaved": "interleaved",
    "Interleaved1F1B": "interleaved",  # PyTorch
    "Vocab-1": "1f1b-vocab:1",  # Yeung et al. 2024, arXiv 2411.05288
    "Vocab-2": "1f1b-vocab",
    "VPP": "interleaved",  # PaddlePaddle, Megatron-LM
    "Llama3": "interleaved",  # arXiv 2407.21783, section 3.3.2: groups of any size
    "LoopedBFS": "breadth-first",  # PyTorch
    "BFS": "breadth-first",
    "ZBVZeroBubble": "zb-v",  # PyTorch
    "V-ZB": "zb-v",  # Qi et al. 2024, arXiv 2405.15362
    "ZeroBubble-V": "zb-v",
    "ZB-V-Half": "v-half",
    "ZB-V-Min": "v-min",
    "ZeroBubble-H1": "zb-h1",
    "ZeroBubble-H2": "zb-h2",
    "Cut-in-half": "dualpipe-v",  # Sea AI Lab 2025
    "WeiPipe-Interleave": "weipipe",
    "WeiPipe-Naive": "weipipe:naive",
    "WZB1": "weipipe:wzb1",
    "WZB2": "weipipe:wzb2",
    "DDP": "data-parallel",
    "DP": "data-parallel",
    "FSDP": "zero3",
}


def current_name(name: str, families: Collection[str]) -> str:
    """Return the name that a family has here; other names are returned as they are.

    Case, hyphens and underscores of the family's name do not matter, nor the `Schedule` before
    names of PyTorch's classes.

    Args:
        name: of a family, with its options behind a colon.
    """
    base, colon, behind = name.partition(":")
    if base == "zero":
        return _of_zero(behind)
    plain = _plain(base).removeprefix("schedule")
    known = {_plain(family): family for family in families}
    known |= {_plain(other): family for other, family in OTHER_NAMES.items()}
    if plain not in known:
        return name
    family, _, implied = known[plain].partition(":")
    options = ",".join(filter(None, (implied, behind.lower())))
    return f"{family}:{options}" if options or colon else family


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
