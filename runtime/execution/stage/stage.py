"""One stage of the model on this rank: its module, and its micro-batches in flight."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils import _pytree as pytree

from synth.errors import SynthError

from ...cutting import tensors_in
from ...split import GradientBox, Recorder, run_backward
from ..base.boundary import Boundary, Tensors, flatten
from ..base.stage_protocol import ForwardInput, OutputTap
from ..base.without_graph import without_graph
from ..gradients.ddp_fsdp import GradientSync
from .forward_state import ForwardState
from .layer_chain import LayerChain
from .micro_batch_state import MicroBatchState, entered
from .offloaded_activations import SavedStore
from .replay_input import Replay, ReplayRecorder, samples_of
from .stage_output import check_loss, given_away, kept_memory, overlaps_unchanged

Loss = Callable[[Any, Any], Tensor]


class Stage:
    """F, R, B, W and BW of a module.

    `trial_device` is the device of a stage whose module has no data here.

    A stage keeps neither its input nor its output alive: gradient edges hold the graph, and inputs
    enter without a leaf. Tensors that autograd saved of them live as long as it needs them.
    """

    def __init__(
        self,
        module: nn.Module | Sequence[nn.Module],
        *,
        is_first: bool,
        is_last: bool,
        loss: Loss | None = None,
    ) -> None:
        """Wrap a module, or layers that follow each other.

        Args:
            module: takes the previous stage's output. The last stage's returns the loss, and takes
                the targets as its last positional argument, unless `loss` is given.
            is_first: True if its inputs are the batch's.
            is_last: True if it ends in the loss.
            loss: the loss function: a scalar, given the last stage's output and the targets.
        """
        self.module = module if isinstance(module, nn.Module) else LayerChain(module)
        self.is_first = is_first
        self.is_last = is_last
        self._loss = loss
        self._recorder = Recorder(self.module, loss)
        self._sync = GradientSync(self.module)
        self._states: dict[int, MicroBatchState] = {}
        self._replays: dict[int, Replay] = {}
        self._state = ForwardState(self.module, loss)
        self._kept_memory: frozenset[int] = frozenset()
        self.trial_device = torch.device("cpu")

    def begin(self) -> None:
        """Begin a step; no micro-batch is in flight."""
        self._state.begin()
        self._recorder.look_for_listeners()
        self._kept_memory = kept_memory(self.module)
        self._sync.begin()

    def reduce_gradients(self) -> None:
        """Let wrappers inside the module reduce the step's complete gradients."""
        self._sync.reduce()

    @contextmanager
    def not_reducing(self) -> Iterator[None]:
        """Let forwards with a graph leave wrappers inside the module as they were."""
        self._sync.begin()
        try:
            yield
        finally:
            self._sync.end()

    def end(self) -> None:
        """End a step, also if it failed."""
        self._sync.end()
        self._state.end()

    @property
    def is_wrapped(self) -> bool:
        """True if DistributedDataParallel or FSDP2 are inside."""
        return bool(self._sync.wrappers)

    @property
    def is_sharded(self) -> bool:
        """True if FSDP2 holds its parameters."""
        return self._sync.is_sharded

    def forward(self, microbatch: int, given: ForwardInput) -> Tensors:
        """F: run the module; without rules if BW follows, which is autograd's own.

        Returns:
            The boundary tensors, or on the last stage the loss alone, if it is wanted; detached.
        """
        boxes: list[GradientBox] = []
        arguments, entry, targets, keywords, fused, moved, tap, after = given
        overlaps = overlaps_unchanged(arguments, entry)
        if entry is not None:
            arguments, boxes = entered(arguments, entry)
        store = SavedStore() if moved else None
        tape = None if fused else self._recorder.new_tape()
        with overlaps, nullcontext() if store is None else store.recording():
            if tape is None:
                output = self._run(arguments, targets, keywords, tap)
            else:
                output = self._recorder.forward(tape, self._run, arguments, targets, keywords, tap)
        tensors = self._flat(output, after)
        if store is not None:
            others = pytree.tree_leaves((arguments, targets, keywords))
            others += self._state.tensors
            store.leave([*tensors, *(x for x in others if isinstance(x, Tensor))])
        trained = [t for t in tensors if t.requires_grad]
        edges, wanted = [get_gradient_edge(t) for t in trained], list(range(len(trained)))
        if after is not None:  # gradients of other tensors may come, too
            wanted = after.gradient_places([t.requires_grad for t in tensors])
        self._states[microbatch] = MicroBatchState(tape, edges, wanted, boxes, entry, store)
        return given_away(tensors, self._kept_memory)

    def _flat(self, output: Any, after: Boundary | None) -> Tensors:
        """The tensors of an output, whose structure must be that of the boundary after it."""
        if self.is_last:
            check_loss(output)
        tensors, spec = flatten(output)
        if after is not None:
            after.check_tree(spec)
        return tensors

    def forward_light(self, microbatch: int, given: ForwardInput) -> Tensors:
        """F without a graph; `rebuild` makes it later, from the same arguments.

        Raises:
            SynthError: the module changes in place what it is given.
        """
        recorder = ReplayRecorder(_tensors(given))
        arguments = given.arguments
        if given.entry is not None:
            arguments = given.entry.arguments(list(arguments))
        recorded = self._state.recorded(given.arguments, given.targets, given.keywords)
        with without_graph(), recorded as state:
            output = self._run(arguments, given.targets, given.keywords, given.tap)
        tensors = self._flat(output, given.exit)
        samples = samples_of(tensors) if self._state.is_first_step else ()
        self._replays[microbatch] = recorder.replay(state, samples)
        return given_away(tensors, self._kept_memory)

    def rebuild(self, microbatch: int, given: ForwardInput) -> None:
        """R: F with its graph; dropout repeats the mask of F.

        Raises:
            SynthError: it gives another output than F did.
        """
        replay = self._replays.pop(microbatch)
        with replay.again(_tensors(given)), self._state.again(replay.state):
            is_equal = replay.gave(self.forward(microbatch, given))
        if not is_equal:
            raise SynthError(
                "a recomputation gives another output than its forward did, and so wrong "
                "gradients: let nothing depend on torch.is_grad_enabled(), which is off in such a "
                "forward, and give dropout ranks that are processes; or recompute nothing (solve "
                "with --recompute none)"
            )

    def give_replay(self, microbatch: int) -> Tensors:
        """Give away what F kept for R, which runs on another rank."""
        return (self._replays.pop(microbatch).packed(),)

    def take_replay(self, microbatch: int, given: Tensors) -> None:
        """Take what another rank's F kept for R."""
        (packed,) = given
        self._replays[microbatch] = Replay.unpacked(packed)

    def take_saved(self, microbatch: int) -> Tensors:
        """O: the storages that F or R saved and that nothing else holds, as bytes."""
        return self._store_of(microbatch).take()

    def saved_sizes(self, microbatch: int) -> tuple[int, ...]:
        """The bytes of each storage that was taken."""
        return self._store_of(microbatch).sizes

    def put_back(self, microbatch: int, saved: Tensors) -> None:
        """Take back storages or copies of them; the caller drops them, so that B can free them."""
        self._store_of(microbatch).put_back(saved)

    def _store_of(self, microbatch: int) -> SavedStore:
        store = self._states[microbatch].store
        if store is None:
            raise RuntimeError(f"O of micro-batch {microbatch}, whose F did not record for a move")
        return store

    def _run(
        self,
        arguments: tuple[Any, ...],
        targets: Any,
        keywords: Mapping[str, Any] | None,
        tap: OutputTap | None = None,
    ) -> Any:
        keywords = keywords or {}
        if keywords and isinstance(self.module, LayerChain):
            raise SynthError(
                f"a sequence of layers takes no keywords ({', '.join(keywords)}): give the stage "
                f"as one module that passes them on"
            )
        if self.is_last and self._loss is None and targets is not None:
            if isinstance(self.module, LayerChain):
                return self.module(*arguments, targets=targets)
            return self.module(*arguments, targets, **keywords)
        if not self.is_last:
            return self.module(*arguments, **keywords)
        is_without = targets is None and (tap is None or tap.with_loss)
        with _named_lack_of_targets() if is_without else nullcontext():
            return self._end(self.module(*arguments, **keywords), targets, tap)

    def _end(self, output: Any, targets: Any, tap: OutputTap | None) -> Any:
        """Return the last stage's loss; () if only its output is wanted."""
        if tap is not None:
            tap.keep(output)
            if not tap.with_loss:
                return ()
        return output if self._loss is None else self._loss(output, targets)

    def backward_input(self, microbatch: int, gradients: Tensors) -> Tensors:
        """B: gradients of the inputs, packed (see `Leaf`), none on the first stage."""
        state = self._states[microbatch]
        self._check_loss(state)
        edges, state.edges = state.edges, []
        if state.tape is None:
            raise RuntimeError(f"B of micro-batch {microbatch}, whose F ran for a BW")
        if edges:
            picked = state.picked(gradients)
            self._recorder.backward_input(state.tape, edges, picked)
        return state.leave()

    def backward_weight(self, microbatch: int) -> None:
        """W: accumulate the weight gradients that B deferred."""
        tape = self._states.pop(microbatch).tape
        if tape is None:
            raise RuntimeError(f"W of micro-batch {microbatch}, whose F ran for a BW")
        tape.backward_weight()

    def reads_weights_in_w(self, microbatch: int) -> bool:
        """True if W of a micro-batch reads parameters, not only their shapes."""
        tape = self._states[microbatch].tape
        return tape is not None and tape.reads_weights

    def backward(self, microbatch: int, gradients: Tensors) -> Tensors:
        """BW: an ordinary backward."""
        state = self._states.pop(microbatch)
        if state.tape is not None:
            raise RuntimeError(f"BW of micro-batch {microbatch}, whose F ran for B and W")
        self._check_loss(state)
        if state.edges:
            run_backward(state.edges, state.picked(gradients))
        return state.leave()

    def _check_loss(self, state: MicroBatchState) -> None:
        """Refuse a loss that nothing can be trained by, as `Tensor.backward` does."""
        is_trained = bool(state.boxes) or any(True for _ in self.parameters())
        if self.is_last and not state.edges and is_trained:
            raise SynthError(
                "the loss requires no gradient, so nothing can be trained: check that it is a real "
                "number computed from the output, without `detach`, `item` or `no_grad`"
            )

    def deferred(self, microbatch: int) -> tuple[Tensor, ...]:
        """The parameters whose gradients wait for W, between a micro-batch's B and W."""
        tape = self._states[microbatch].tape
        return () if tape is None else tape.deferred

    def unused_inputs(self, microbatch: int) -> tuple[int, ...]:
        """The differentiable inputs that a micro-batch's B found no gradient of, before its W."""
        return self._states[microbatch].unused

    @property
    def has_loss(self) -> bool:
        """True if a loss function follows the module; else the last one computes its own loss."""
        return self._loss is not None

    @property
    def loss(self) -> Loss | None:
        """The loss function that follows the module."""
        return self._loss

    def twin(self) -> "Stage":
        """Make another stage of the same module, which has observed no forward yet."""
        return Stage(self.module, is_first=self.is_first, is_last=self.is_last, loss=self._loss)

    @property
    def layers(self) -> Sequence[nn.Module]:
        """The layers that it runs one after another; a lone module is one layer."""
        return list(self.module.layers) if isinstance(self.module, LayerChain) else [self.module]

    @property
    def device(self) -> torch.device:
        """The device of its parameters or buffers; the CPU if it has none."""
        kept = (*self.module.parameters(), *self.module.buffers())
        return kept[0].device if kept else torch.device("cpu")

    def parameters(self) -> Iterable[Tensor]:
        """The trainable parameters."""
        return (p for p in self.module.parameters() if p.requires_grad)

    def copy_of(self, parameter: Tensor) -> Tensor:
        """A copy of a parameter's values."""
        return parameter.detach().clone()

    def state(self) -> Iterable[Tensor]:
        """All parameters and buffers."""
        return (*self.module.parameters(), *self.module.buffers())

    def forget(self) -> None:
        """Drop the micro-batches in flight."""
        self._states.clear()
        self._replays.clear()

    @without_graph()
    def output_like(self, arguments: tuple[Any, ...], targets: Any = None) -> Any:
        """Run once without autograd, to find the form of the output."""
        return self._run(arguments, targets, None)


@contextmanager
def _named_lack_of_targets() -> Iterator[None]:
    """Say in an error of the last stage that it was given no targets, which may be why."""
    try:
        yield
    except (SynthError, RuntimeError):
        raise
    except Exception as error:
        raise SynthError(
            f"the last stage failed, and the batch has no targets: {type(error).__name__}: "
            f"{error}; give `split` the targets=…, or call `evaluate(batch, outputs=[])` for "
            f"outputs without a loss"
        ) from error


def _tensors(given: ForwardInput) -> Tensors:
    """The tensors that F gets: the previous stage's output or the batch, targets and keywords."""
    return tuple(tensors_in([given.arguments, given.targets, dict(given.keywords or {})]))
