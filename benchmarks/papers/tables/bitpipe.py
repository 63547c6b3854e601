"""BitPipe's experiments (arXiv 2410.19367): its figures 8 to 11 and what it says of its tables."""

from collections.abc import Iterator
from functools import cache
from itertools import pairwise, product
from statistics import fmean

from benchmarks.papers.comparison import PaperTable, Row, counted
from benchmarks.papers.tables.bitpipe_model import MODELS, Layouts, Step, searched, step

_FAMILIES = {
    "DAPPLE": "1f1b", "1F1B-Int": "interleaved:2", "Chimera": "chimera", "MixPipe": "mixpipe",
}  # fmt: skip
_BITPIPE = "bitpipe:1"
# Sequences of a micro-batch on 8 GPUs (section "Pipeline Parallelism Performance").
_SEQUENCES = {"BERT-64": 4, "GPT-96": 1}
_TIMES_D = (1, 2, 4)
_GPUS = (8, 16, 32)


@cache
def _on_8(model: str, family: str, times: int) -> Step:
    return step(model, family, Layouts(1, 8, _SEQUENCES[model]), 8 * times)


def _lead_on_8(model: str, other: str, times: int) -> float:
    speeds = [_on_8(model, family, times).samples_per_s for family in (_BITPIPE, _FAMILIES[other])]
    return speeds[0] / speeds[1]


def _on_one_node() -> Iterator[Row]:
    others = ("DAPPLE", "1F1B-Int", "Chimera")
    for model, other in product(MODELS, others):
        leads = [_lead_on_8(model, other, times) for times in _TIMES_D]
        yield Row(f"{model}: speed over {other}", round(fmean(leads), 3))
    everywhere = [*product(MODELS, others, _TIMES_D)]
    yield counted("the fastest in each configuration", (_lead_on_8(*one) > 1 for one in everywhere))
    yield counted(
        "the lead falls as the mini-batch grows",
        (
            _lead_on_8(model, other, more) < _lead_on_8(model, other, few)
            for model, other in product(MODELS, others)
            for few, more in pairwise(_TIMES_D)
        ),
    )
    yield counted(
        "more even memory than DAPPLE and 1F1B-Int",
        (
            _spread(model, _BITPIPE) < _spread(model, _FAMILIES[other])
            for model, other in product(MODELS, ("DAPPLE", "1F1B-Int"))
        ),
    )


def _spread(model: str, family: str) -> float:
    """Return the largest peak of a rank over the least one."""
    peaks = _on_8(model, family, 1).peaks_bytes
    return max(peaks) / min(peaks)


@cache
def _best(model: str, family: str, gpus: int) -> Step:
    return max(searched(model, family, gpus, is_default=True), key=lambda one: one.samples_per_s)


def _lead(model: str, other: str, gpus: int) -> float:
    speeds = [_best(model, family, gpus).samples_per_s for family in (_BITPIPE, _FAMILIES[other])]
    return speeds[0] / speeds[1]


def _with_data_parallelism() -> Iterator[Row]:
    others = ("DAPPLE", "1F1B-Int", "MixPipe")
    for model, other in product(MODELS, others):
        leads = [_lead(model, other, gpus) for gpus in _GPUS]
        yield Row(f"{model}: speed over {other}", round(fmean(leads), 3))
    everywhere = [*product(MODELS, others, _GPUS)]
    yield counted("the fastest at each scale", (_lead(*one) > 1 for one in everywhere))
    yield counted(
        "D = 8 is the best on 32 GPUs",
        (
            _best(model, family, 32).layout.ranks == 8
            for model, family in product(MODELS, (*_FAMILIES.values(), _BITPIPE))
            if family != "chimera"
        ),
    )
    sizes = MODELS["BERT-64"][2]
    yield counted(
        "BERT-64, 32 GPUs: throughput grows with B",
        (more > few for ranks in (4, 8, 16) for few, more in pairwise(_by_sequences(ranks, sizes))),
    )


def _by_sequences(ranks: int, sizes: tuple[int, ...]) -> list[float]:
    """Return the throughput of BitPipe by B, as far as it fits."""
    found = searched("BERT-64", _BITPIPE, 32, is_default=False, ranks=(ranks,))
    by_size = {one.layout.sequences: one.samples_per_s for one in found}
    return [by_size[size] for size in sizes if size in by_size]


def _ablation() -> Iterator[Row]:
    variants = (_BITPIPE, "bitpipe-loop:2", "bitpipe:1,late-sync")
    speeds = [
        [_on_8("BERT-64", name, times).samples_per_s for name in variants] for times in (1, 2, 4)
    ]
    yield counted("BitPipe is faster than w/o V", (one[0] > one[1] for one in speeds))
    yield counted("BitPipe is faster than w/o E", (one[0] > one[2] for one in speeds))
    yield counted("w/o V is faster than w/o E", (one[1] > one[2] for one in speeds))


TABLES = (
    PaperTable("bitpipe-node", "8 A800 with NVLink, D = 8, W = 1.", _on_one_node),
    PaperTable(
        "bitpipe-cluster", "8, 16 and 32 A800, the best W and D, N = D.", _with_data_parallelism
    ),
    PaperTable("bitpipe-ablation", "BERT-64 on 8 A800 with NVLink.", _ablation),
)
