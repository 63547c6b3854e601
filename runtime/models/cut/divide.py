"""Divides a recorded forward into the pieces of a pipeline."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from torch import nn

from synth.errors import SynthError

from .origin import Origin
from .piece import Piece, make_tables
from .steps import RecordedCall, RecordedForward
from .structure import Structure


class PieceCalls(NamedTuple):
    """Consecutive steps, and the name of the piece that they are."""

    name: str
    steps: list[RecordedCall]


def parts_at_blocks(
    steps: Sequence[RecordedCall],
    blocks: Collection[str],
    has_parameters: Callable[[RecordedCall], bool],
) -> list[PieceCalls]:
    """Return a part for each call of a block, and for what is before and after all of them.

    A block that is a list or a dictionary of modules is called from the first call of one of them
    to the last before another block's. Steps between two blocks belong to the first of them. If
    they have parameters of their own, they are a part, too, which begins where the fewest tensors
    travel, at the latest at the first step with parameters.

    Raises:
        SynthError: no block is called.
    """
    calls = _calls_of_blocks(steps, blocks)
    if not calls:
        raise SynthError(
            "the forward of the model calls none of its blocks: name the modules to cut at with "
            "--cut, or return a list of layers"
        )
    before = list(steps[: calls[0].begin])
    parts = [PieceCalls(_first_name(before, "inputs"), before)] if before else []
    begins_of_next = [*(call.begin for call in calls[1:]), len(steps)]
    for (name, begin, end), following in zip(calls, begins_of_next, strict=True):
        is_last = following == len(steps)
        own = next((i for i in range(end, following) if has_parameters(steps[i])), None)
        if own is not None:
            own = min(range(end, own + 1), key=lambda at: _num_travelling(steps, at))
        else:
            own = end if is_last else following
        parts.append(PieceCalls(name, list(steps[begin:own])))
        if rest := steps[own:following]:
            name = _first_name(rest[::-1], "loss") if is_last else _first_name(rest, "between")
            parts.append(PieceCalls(name, list(rest)))
    return parts


def _num_travelling(steps: Sequence[RecordedCall], at: int) -> int:
    """The number of values that are made before a step and read from there on."""
    made = {number for step in steps[:at] for _, number in step.outputs}
    return len(made.intersection(number for step in steps[at:] for number in step.reads()))


class _BlockCall(NamedTuple):
    """The steps of a block: from `begin` to before `end`."""

    name: str
    begin: int
    end: int


def _calls_of_blocks(steps: Sequence[RecordedCall], blocks: Collection[str]) -> list[_BlockCall]:
    calls: list[_BlockCall] = []
    for index, step in enumerate(steps):
        if step.module is None:
            continue
        name = next((n for n in _with_parents(step.module) if n in blocks), None)
        if name is None:
            continue
        is_part = step.module != name
        if is_part and calls and calls[-1].name == name:
            calls[-1] = calls[-1]._replace(end=index + 1)
        else:
            calls.append(_BlockCall(name, index, index + 1))
    return calls


def _with_parents(name: str) -> list[str]:
    words = name.split(".")
    return [".".join(words[:end]) for end in range(len(words), 0, -1)]


def parts_at_names(
    steps: Sequence[RecordedCall], named: Mapping[str, Sequence[str]]
) -> list[PieceCalls]:
    """Return a part that begins at each call of a named module; the first has all before it.

    Raises:
        SynthError: a pattern's modules are not called.
    """
    begins = {name for names in named.values() for name in names}
    called = {step.module for step in steps}
    for pattern, names in named.items():
        if called.isdisjoint(names):
            raise SynthError(
                f"--cut: the forward of the model calls no {pattern!r} (outside of other modules)"
            )
    parts: list[PieceCalls] = []
    waiting: list[RecordedCall] = []
    for step in steps:
        if step.module in begins:
            assert step.module is not None
            parts.append(PieceCalls(step.module, [*waiting, step]))
            waiting = []
        elif parts:
            parts[-1].steps.append(step)
        else:
            waiting.append(step)
    return parts


def _first_name(steps: Sequence[RecordedCall], otherwise: str) -> str:
    return next((step.module for step in steps if step.module is not None), otherwise)


def without_unused(recording: RecordedForward) -> list[RecordedCall]:
    """Leave out functions whose results nothing reads."""
    needed, kept = {recording.loss}, []
    for step in reversed(recording.steps):
        made = {number for _, number in step.outputs}
        if step.module is not None or step.mutated or not needed.isdisjoint(made):
            needed.update(step.reads())
            kept.append(step)
    return kept[::-1]


def make_pieces(
    model: nn.Module,
    recording: RecordedForward,
    parts: Sequence[PieceCalls],
    structures: tuple[Structure, Structure],
) -> list[Piece]:
    """Make the pieces, each of which returns what later ones need.

    The first takes inputs of the first structure, the last takes targets of the second.

    Raises:
        SynthError: the targets are needed before the last piece, or a piece changes what an
            earlier one made.
    """
    _check_in_place(recording, parts)
    tables = make_tables(recording.constants)
    targets, shapes = set(recording.targets), recording.shapes
    given, pieces, origin = list(recording.inputs), [], Origin.of(model)
    for index, part in enumerate(parts):
        later = [number for other in parts[index + 1 :] for step in other.steps
                 for number in step.reads()]  # fmt: skip
        if index < len(parts) - 1:
            _check_without_targets(part, targets)
            made = {number for step in part.steps for _, number in step.outputs}
            available = made.union(given)
            returned = [number for number in dict.fromkeys(later) if number in available]
            if not returned:
                raise SynthError(f"nothing that {part.name} computes is used after it")
        else:
            given = [*given, *recording.targets]
            returned = [recording.loss]
        pieces.append(
            Piece(
                part.name,
                model,
                part.steps,
                given,
                returned,
                tables,
                shapes,
                inputs=structures[0] if index == 0 else None,
                targets=structures[1] if index == len(parts) - 1 else None,
                origin=origin,
            )
        )
        given = returned
    return pieces


def _check_in_place(recording: RecordedForward, parts: Sequence[PieceCalls]) -> None:
    """Check that what a piece changes in place, and all views of it, are made by the piece."""
    storages = recording.storages
    makers: dict[int, set[int]] = {storages[n]: {-1} for n in recording.inputs + recording.targets}
    for index, part in enumerate(parts):
        for step in part.steps:
            for number in step.mutated:
                if makers.get(storages[number], set()) - {index}:
                    raise SynthError(
                        f"{part.name} changes a tensor in place that an earlier layer or the "
                        f"inputs gave (at {step.place}): make a new tensor instead, such as "
                        f"`x = x + y`, or cut elsewhere (--cut)"
                    )
            for _, number in step.outputs:
                makers.setdefault(storages[number], set()).add(index)


def _check_without_targets(part: PieceCalls, targets: set[int]) -> None:
    if any(not targets.isdisjoint(step.reads()) for step in part.steps):
        raise SynthError(
            f"{part.name} reads the targets, which only the last layer of a pipeline has: let the "
            f"inputs contain what it needs of them (--inputs), such as decoder_input_ids"
        )
