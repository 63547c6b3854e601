"""The tables of notes/runtime.md: post-validation, and the bytes held between B and W."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.page_tables.commands import answer, run
from benchmarks.page_tables.page_table import PageTable
from benchmarks.results_file import markdown_table
from benchmarks.split_cost import Case, Ours, after_input_pass, kept_bytes


class EmulatedRow(NamedTuple):
    """An emulated plan; times of an iteration in µs, `paid` tells which time is predicted."""

    command: str
    paid: str
    predicted_us: int
    measured_us: int


_SOLVE = (
    "synth solve zb-1.5b-p8-m24 --ranks 8 --micro-batches 24 --objective period "
    "--placement linear --partition even -o plan.json"
)
_EMULATE = "synth emulate plan.json --steps 9"


def _post_validation() -> Iterator[EmulatedRow]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(_SOLVE, folder)
        for command in (_EMULATE, f"{_EMULATE} --post-validation"):
            found = answer(command, folder)
            yield EmulatedRow(command, found["paid"], found["predicted_us"], found["measured_us"])


def _post_validation_table(document: Mapping[str, Any]) -> str:
    heads = ("command", "predicted ms", "measured ms", "measured / predicted")
    return markdown_table(heads, (_emulated_line(EmulatedRow(**row)) for row in document["rows"]))


def _emulated_line(row: EmulatedRow) -> list[str]:
    return [
        f"`{row.command}`",
        f"{row.predicted_us / 1e3:.0f} ({row.paid})",
        f"{row.measured_us / 1e3:.0f}",
        f"{row.measured_us / row.predicted_us:.3f}",
    ]


class HeldRow(NamedTuple):
    """The bytes that wait for W after B, of one layer or of all.

    Attributes:
        layer: the module's parameters that W is for.
        activation_bytes: of one activation, rows × width.
        input_bytes: of inputs of the layer; a tensor that several layers hold counts once.
        gradient_bytes: of gradients of its output.
        allocated_bytes: by the allocator's count all that is held after B; None for one layer.
    """

    layer: str
    activation_bytes: int
    input_bytes: int
    gradient_bytes: int
    allocated_bytes: int | None = None


_SHAPE = (2, 256, 768)
_LABELS = {
    "self_attn.in_proj_weight": "q, k and v (packed)",
    "self_attn.out_proj.weight": "attention's output",
    "linear1.weight": "first of the MLP",
    "linear2.weight": "second of the MLP",
}
_AFTER_B = "after B"


def _held() -> Iterator[HeldRow]:
    """Yield the bytes that an encoder layer with ReLU holds after B."""
    *_, width = _SHAPE
    layer = nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    case = Case("encoder layer", layer, lambda: (torch.randn(*_SHAPE),))
    names = {id(parameter): name for name, parameter in layer.named_parameters()}
    activation_bytes = _SHAPE[0] * _SHAPE[1] * width * 4
    after_input_pass(Ours, case)  # the first F is observed
    micro_batch = Ours(case)
    micro_batch.input_pass()
    seen: set[int] = set()
    rows = []
    for task in reversed(micro_batch.tape._tasks):
        call, grad = task._call, task._grad
        assert call is not None and grad is not None
        held = (_bytes_of(call.input, seen), _bytes_of(grad, seen))
        rows.append(HeldRow(names[id(task.targets[0])], activation_bytes, *held))
    yield from rows
    yield HeldRow(
        _AFTER_B,
        activation_bytes,
        sum(row.input_bytes for row in rows),
        sum(row.gradient_bytes for row in rows),
        kept_bytes(lambda: after_input_pass(Ours, case), "cpu"),
    )


def _bytes_of(tensor: Tensor, seen: set[int]) -> int:
    """Return the bytes of a tensor's storage; 0 if it was seen."""
    storage = tensor.untyped_storage()
    if storage.data_ptr() in seen:
        return 0
    seen.add(storage.data_ptr())
    return storage.nbytes()


def _held_table(document: Mapping[str, Any]) -> str:
    heads = ("layer", "inputs", "output gradients", "sum", "by the allocator")
    return markdown_table(heads, (_held_line(HeldRow(**row)) for row in document["rows"]))


def _held_line(row: HeldRow) -> list[str]:
    sizes = (row.input_bytes, row.gradient_bytes, row.input_bytes + row.gradient_bytes)
    allocated = "" if row.allocated_bytes is None else _size(row.allocated_bytes, row)
    return [_LABELS.get(row.layer, row.layer), *(_size(size, row) for size in sizes), allocated]


def _size(num_bytes: int, row: HeldRow) -> str:
    return f"{num_bytes / row.activation_bytes:.2f}".removesuffix(".00")


TABLES = (
    PageTable(
        "post-validation",
        "notes/runtime.md",
        "an iteration on emulated devices, medians of 7 iterations.",
        (_SOLVE, _EMULATE, f"{_EMULATE} --post-validation"),
        _post_validation,
        _post_validation_table,
    ),
    PageTable(
        "held-after-b",
        "notes/runtime.md",
        "an encoder layer with ReLU; unit: one activation, rows × width.",
        (),
        _held,
        _held_table,
        is_exact=True,
    ),
)
