"""The input of R in addition to F's: random generators and other state as F found them."""

import cmath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from synth.errors import SynthError

from .forward_state import StateAtForward, names_of
from .stage_output import versions_of

# Kernels of a GPU may add up in another order each time; another function gives other digits.
_NUM_SAMPLES, _NEAR = 64, 0.05


@dataclass(frozen=True)
class RandomState:
    """The states of the random generators, outside of PyTorch's memory (the CPU's is 5 kB)."""

    cpu: bytes
    cuda: tuple[tuple[int, bytes], ...] = ()

    @classmethod
    def now(cls, tensors: Sequence[Tensor]) -> "RandomState":
        """Take the states of the CPU's generator and of those of the tensors' devices."""
        devices = sorted({t.device.index for t in tensors if t.is_cuda})
        cuda = tuple((index, _bytes(torch.cuda.get_rng_state(index))) for index in devices)
        return cls(_bytes(torch.get_rng_state()), cuda)

    def put_back(self) -> None:
        """Restore the states."""
        torch.set_rng_state(_state(self.cpu))
        for index, state in self.cuda:
            torch.cuda.set_rng_state(_state(state), index)


@dataclass(frozen=True)
class Replay:
    """Runs F again with the same random numbers and the same state.

    Attributes:
        random: torch's own generators; None if F drew nothing of them.
        state: what F found; None if another rank has run F.
        tensors: what F was given, as the rank keeps it for R; none if another rank has run F.
        versions: autograd's counts of their changes in place.
        samples: of F's output, to compare R's with; none after the first step.
    """

    random: RandomState | None
    state: StateAtForward | None = None
    tensors: Sequence[Tensor] = ()
    versions: tuple[int, ...] = ()
    samples: Sequence[Sequence[complex]] = ()

    @contextmanager
    def again(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Draw F's random numbers within the block; afterwards restore torch's generators.

        Raises:
            SynthError: a later stage of this rank has changed in place what F was given.
        """
        if versions_of(self.tensors) != self.versions:
            raise changed_in_place("a stage, or one after it,")
        interrupted = None if self.random is None else RandomState.now(tensors)
        if self.random is not None:
            self.random.put_back()
        try:
            yield
        finally:
            if interrupted is not None:
                interrupted.put_back()

    def gave(self, outputs: Sequence[Tensor]) -> bool:
        """True if R's output is that of F as far as is known, but for other roundings."""
        if not self.samples:
            return True
        return all(map(_are_near, self.samples, samples_of(outputs)))

    def packed(self) -> Tensor:
        """The bytes of it, for a rank on the CPU that runs R in place of this one.

        Raises:
            SynthError: F changed what that rank does not have.
        """
        changed = [] if self.state is None else self.state.changed
        if changed:
            raise SynthError(
                f"a stage changes {names_of(changed)}, and another rank is to recompute it, which "
                f"does not have that: take a schedule whose R runs where its F does, draw random "
                f"numbers from torch's own generator, and keep no count in the module"
            )
        packed = packed_buffer()
        if self.random is not None:
            packed[0] = 1
            packed[1:] = _state(self.random.cpu)
        return packed

    @classmethod
    def unpacked(cls, packed: Tensor) -> "Replay":
        """Read what `packed` wrote."""
        return cls(RandomState(_bytes(packed[1:])) if packed[0] else None)


def packed_buffer() -> Tensor:
    """Zeros for a packed replay: whether there are random states, and the CPU's state.

    They are outside of PyTorch's memory.
    """
    return _state(bytes(1 + torch.get_rng_state().numel()))


class ReplayRecorder:
    """Observes an F that R will repeat: random draws, and changes of its input."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self._versions = versions_of(tensors)
        self._random = RandomState.now(tensors)

    def replay(
        self, state: StateAtForward | None = None, samples: Sequence[Sequence[complex]] = ()
    ) -> Replay:
        """Return the replay of an F that has ended, with the state that it found.

        Raises:
            SynthError: F changed its input, which R would start from.
        """
        if versions_of(self._tensors) != self._versions:
            raise changed_in_place("a stage")
        drew = RandomState.now(self._tensors) != self._random
        random = self._random if drew else None
        return Replay(random, state, self._tensors, self._versions, samples)


def samples_of(outputs: Sequence[Tensor]) -> list[list[complex]]:
    """Some numbers of each tensor that is not of whole numbers; in this a device is waited for."""
    numbers = [t.detach() for t in outputs if t.is_floating_point() or t.is_complex()]
    return [t.flatten()[:: max(1, t.numel() // _NUM_SAMPLES)].tolist() for t in numbers]


def _are_near(before: Sequence[complex], now: Sequence[complex]) -> bool:
    far = _NEAR * max((abs(x) for x in before if cmath.isfinite(x)), default=0.0)
    pairs = zip(before, now, strict=False)
    return len(before) == len(now) and all(
        x == y or abs(x - y) <= far or cmath.isnan(x) for x, y in pairs
    )


def changed_in_place(who: str) -> SynthError:
    """Make the error of a forward whose inputs or targets are not there any more to be repeated."""
    return SynthError(
        f"{who} changes its input in place, or its targets, so it cannot be computed again from "
        f"them: change a copy (`x = x.clone()`), or recompute nothing (solve with --recompute none)"
    )


def _bytes(state: Tensor) -> bytes:
    return state.numpy().tobytes()


def _state(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
