"""Stages of a workload's layers: each called in its precision, recomputed or not, seeded."""

import fnmatch
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from synth.costs.recomputation import FULL, Recomputation
from synth.errors import SynthError
from synth.profile.workload import Workload

from ..cutting import tensors_in
from ..dtypes import dtype_of
from ..execution.base.boundary import Tensors
from ..execution.base.stage_protocol import ForwardInput
from ..execution.stage.forward_state import ForwardState, StateAtForward
from ..execution.stage.layer_chain import LayerChain
from ..execution.stage.replay_input import changed_in_place
from ..execution.stage.stage import Stage
from ..execution.stage.stage_output import versions_of
from ..seeds import derive_seed, generators_of
from .recompute_policies import SELECTIVE, check_policy, run_recomputed


@dataclass
class Randomness:
    """Seeds of a layer's random numbers, from the run's seed, the layer, and the data it sees.

    So dropout is the same under any schedule and partition, after a restart, and in a step that is
    run again. `first_sequence` is the data position of the mini-batch under way.
    """

    seed: int
    sequences_per_microbatch: int
    first_sequence: int = 0

    def of(self, layer: int, microbatch: int) -> int:
        """The seed of a layer's F of a micro-batch."""
        sequence = self.first_sequence + microbatch * self.sequences_per_microbatch
        return derive_seed(self.seed, layer, sequence)


@dataclass
class LayerCall:
    """A layer and how it is called; `policy` says what of it B computes again, None: nothing."""

    index: int
    module: nn.Module
    autocast: torch.dtype | None = None
    policy: str | None = None
    _state: ForwardState = field(init=False)

    def __post_init__(self) -> None:
        self._state = ForwardState(self.module)

    def __call__(self, arguments: tuple[Any, ...], seed: int | None = None) -> Any:
        """Run it, with its random numbers from `seed`; None: from torch's generators as they stand.

        What B computes again draws the numbers of the first time.

        Raises:
            SynthError: B is to compute it again, and it changes in place what it is given.
        """
        device = device_of(arguments)
        is_recomputed = self.policy is not None and torch.is_grad_enabled()
        if self.policy is None or not is_recomputed:
            with _drawing(device, seed):
                return self._run(*arguments)
        if self.policy == SELECTIVE:  # the layer's own code runs once
            with _drawing(device, seed):
                return run_recomputed(self.policy, self._run, arguments)
        given = list(tensors_in(arguments))
        versions = versions_of(given)
        found: list[StateAtForward] = []
        start: int | Sequence[Tensor] | None = seed

        @contextmanager
        def first() -> Iterator[None]:
            nonlocal start
            before = _states(device) if seed is None else None
            with self._state.recorded(arguments) as state, _drawing(device, seed):
                found.append(state)
                yield
            if before is not None and not all(map(torch.equal, before, _states(device))):
                start = before

        @contextmanager
        def again() -> Iterator[None]:
            self._check_unchanged(given, versions)
            with self._state.again(found[0]), _drawing(device, start):
                yield

        output = run_recomputed(self.policy, self._run, arguments, first, again)
        self._check_unchanged(given, versions)
        return output

    def _check_unchanged(self, given: Sequence[Tensor], versions: tuple[int, ...]) -> None:
        if versions_of(given) != versions:
            name = f"layer {self.index} ({type(self.module).__name__})"
            raise changed_in_place(f"{name}, or one after it,")

    def begin(self) -> None:
        """Begin a step."""
        self._state.begin()

    def end(self) -> None:
        """End a step.

        Raises:
            SynthError: see `ForwardState.end`.
        """
        self._state.end()

    def _run(self, *arguments: Any) -> Any:
        with self._precision(arguments):
            return self.module(*arguments)

    def _precision(self, arguments: tuple[Any, ...]) -> AbstractContextManager[object]:
        if self.autocast is None:
            return nullcontext()
        device = device_of(arguments)
        if device.type == "meta":
            raise TypeError("there is no autocast of tensors without data")
        return torch.autocast(device.type, self.autocast)


class LayeredStage(Stage):
    """A stage that calls its layers as the workload says."""

    def __init__(
        self,
        layers: Sequence[LayerCall],
        *,
        is_first: bool,
        is_last: bool,
        randomness: Randomness | None = None,
    ) -> None:
        """Chain the layers; without randomness they draw from torch's generator as it stands."""
        self._chain = _LayerChain(layers)
        self._randomness = randomness
        super().__init__(self._chain, is_first=is_first, is_last=is_last)

    def begin(self) -> None:
        super().begin()
        for call in self._chain.calls:
            call.begin()

    def end(self) -> None:
        super().end()
        for call in self._chain.calls:
            call.end()

    def forward(self, microbatch: int, given: ForwardInput) -> Tensors:
        with self._seeded(microbatch):
            return super().forward(microbatch, given)

    def twin(self) -> Stage:
        """Make another stage of the same module, which watches its state anew."""
        layers = [replace(call) for call in self._chain.calls]
        return LayeredStage(
            layers, is_first=self.is_first, is_last=self.is_last, randomness=self._randomness
        )

    def forward_light(self, microbatch: int, given: ForwardInput) -> Tensors:
        with self._seeded(microbatch):
            return super().forward_light(microbatch, given)

    @contextmanager
    def _seeded(self, microbatch: int) -> Iterator[None]:
        """Within it layers draw the random numbers of a micro-batch."""
        own = self._randomness
        if own is not None:
            self._chain.seed_of = lambda layer: own.of(layer, microbatch)
        try:
            yield
        finally:
            self._chain.seed_of = None


class _LayerChain(LayerChain):
    """The layers one after another, each called its way."""

    def __init__(self, layers: Sequence[LayerCall]) -> None:
        super().__init__([layer.module for layer in layers])
        self.calls = list(layers)
        self.seed_of: Callable[[int], int] | None = None

    def call(self, index: int, layer: nn.Module, arguments: tuple[Any, ...]) -> Any:
        """Run one of them its way."""
        call = self.calls[index]
        seed = None if self.seed_of is None else self.seed_of(call.index)
        return call(arguments, seed)


def layer_calls(
    modules: Mapping[int, nn.Module],
    names: Sequence[str],
    *,
    autocast: str | None,
    recomputed: Sequence[str],
    recomputed_layers: Collection[int] = (),
) -> dict[int, LayerCall]:
    """Pair some of a model's layers with how each is called.

    Args:
        modules: by index.
        autocast: the dtype's name, or none.
        recomputed: patterns of names, such as `block.*`: only their input is kept in F.
        recomputed_layers: indices of further such layers; of a `Recomputation` each under its
            policy.

    Raises:
        SynthError: no such dtype or policy, or a pattern that fits no layer.
    """
    for pattern in recomputed:
        if not fnmatch.filter(names, pattern):
            raise SynthError(
                f"no layer fits {pattern!r}, which is to be recomputed; there are "
                f"{', '.join(names[:6])}{', …' * (len(names) > 6)}"
            )
    dtype = None if autocast is None else dtype_of(autocast)
    whole = {
        index: FULL
        for index in modules
        if any(fnmatch.fnmatchcase(names[index], pattern) for pattern in recomputed)
    }
    policies = {**Recomputation(recomputed_layers), **whole}
    for policy in {*policies.values()} - {FULL}:
        check_policy(policy)
    return {
        index: LayerCall(index, module, dtype, policies.get(index))
        for index, module in modules.items()
    }


def calls_of(
    workload: Workload,
    layers: Mapping[int, nn.Module],
    names: Sequence[str],
    recomputed_layers: Collection[int] = (),
) -> list[LayerCall]:
    """Calls of some layers, by index, as the workload and the plan's recomputed layers say."""
    calls = layer_calls(
        layers,
        names,
        autocast=workload.autocast,
        recomputed=workload.recomputed_layers or (),
        recomputed_layers=recomputed_layers,
    )
    return list(calls.values())


def device_of(arguments: tuple[Any, ...]) -> torch.device:
    """Return the device of the first tensor in some arguments; the CPU if there is none."""
    found = next((a for a in arguments if isinstance(a, Tensor)), None)
    if found is None:
        leaves = pytree.tree_leaves(arguments)
        found = next((leaf for leaf in leaves if isinstance(leaf, Tensor)), None)
    return found.device if found is not None else torch.device("cpu")


def _states(device: torch.device) -> list[Tensor]:
    """Return the states of torch's generators that a layer on a device draws from."""
    return [generator.get_state() for generator in generators_of(device)]


@contextmanager
def _drawing(device: torch.device, start: int | Sequence[Tensor] | None) -> Iterator[None]:
    """Within it torch's generators draw from a seed; or from states, and then go on as before.

    None: they draw as they stand.
    """
    if start is None:
        yield
        return
    generators = generators_of(device)
    if isinstance(start, int):
        for generator in generators:
            generator.manual_seed(start)
        yield
    else:
        before = _states(device)
        _put(generators, start)
        try:
            yield
        finally:
            _put(generators, before)


def _put(generators: Sequence[torch.Generator], states: Sequence[Tensor]) -> None:
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
