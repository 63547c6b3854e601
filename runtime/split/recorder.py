"""Runs a module's Fs on tapes, and intercepts torch's functions only where needed.

Interception slows every call in F, with a rule or not. So only the first F is intercepted as a
whole. Later ones intercept only the modules in which it found calls with a rule. In most models
these are `nn.Linear` modules, which get another `forward` while F runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from ..state.module_state import picture_of
from .attention import RecordedAttention, can_record
from .first_pass_observers import BackwardObserver, Findings, ForwardObserver, RunsBackward
from .forwards import (
    CallInterceptor,
    Compiled,
    Forward,
    RecordedLinear,
    Recording,
    RunningModules,
    replaced,
    runs_as_linear,
)
from .interception import Interception
from .listeners import find_listened
from .split_backward import OutputGradients, Outputs, SplitTape


class Recorder:
    """Records the Fs of one module, one at a time.

    A call with a rule that first occurs in a later F, in a module that had none, is left to
    autograd; so is a stage that runs a backward of its own.
    """

    def __init__(self, module: nn.Module, *others: Any) -> None:
        """Record a module; `others` are functions that its Fs call beside it, such as the loss."""
        self._module, self._others = module, others
        self._findings: Findings | None = None
        self._has_seen_backward = False
        self._functions: dict[Any, Any] = {}
        self._forwards: list[Forward] = []
        self._recording = Recording()
        self._listened: Mapping[int, Tensor] = {}

    def look_for_listeners(self) -> None:
        """Find the parameters with gradient hooks; called while no micro-batch is in flight."""
        self._listened = find_listened(self._module.parameters())

    def new_tape(self) -> SplitTape:
        """A tape for one micro-batch."""
        return SplitTape(listened=self._listened, left=self._left(), functions=self._functions)

    def _left(self) -> frozenset[int]:
        """Parameters that autograd reaches, too, in a way that W cannot complete."""
        if self._findings is None:
            return frozenset()
        return self._findings.entered | (self._findings.mixed & self._listened.keys())

    def forward(self, tape: SplitTape, fn: Callable[..., Any], *arguments: Any) -> Any:
        """F: `fn(*arguments)`, which runs the module."""
        if self._findings is None:
            return self._observe(tape, fn, *arguments)
        if self._findings.runs_backward:
            return fn(*arguments)
        with self._rules(tape):
            return fn(*arguments)

    def backward_input(
        self, tape: SplitTape, outputs: Outputs, grads: OutputGradients = None
    ) -> None:
        """B, which may run parts of the module's F again."""
        tape.backward_input(outputs, grads, rules=self._rules_in_backward)

    def _observe(self, tape: SplitTape, fn: Callable[..., Any], *arguments: Any) -> Any:
        """The first F: with rules, unless it shows that there must be none."""
        path: list[nn.Module] = []
        findings, parts = Findings(), list(_parts(self._module))
        observer = ForwardObserver(tape, findings, path)
        before = _State((self._module, *self._others), arguments)
        try:
            with replaced([_tracked(part, path) for part in parts]), observer:
                output = fn(*arguments)
            observer.compare_uses(output)
        except RunsBackward:
            findings.runs_backward = True
        self._findings = findings
        self._forwards = [f for part in parts if (f := self._forward_of(part)) is not None]
        if findings.runs_backward or self._left():
            before.put_back()
            tape.restart(left=self._left())
            return self.forward(tape, fn, *arguments)
        return output

    @property
    def _found(self) -> Findings:
        """The findings of the first F."""
        if self._findings is None:
            raise RuntimeError("no F has been observed yet")
        return self._findings

    def _forward_of(self, part: nn.Module) -> Forward | None:
        if _is_compiled(part):
            return Compiled(part)
        if isinstance(part, nn.Linear) and runs_as_linear(part):
            return RecordedLinear(part, self._recording)
        if _is_attention(part) and "forward" not in vars(part):
            return RecordedAttention(part, self._recording)
        return CallInterceptor(part, self._recording) if part in self._found.callers else None

    def _rules_in_backward(self, tape: SplitTape) -> AbstractContextManager[object]:
        """The rules that must be in force where B runs parts of F again.

        Only packed tensors force B to repeat the calls exactly. Else the first such B is observed,
        as a layer may run its own calls again to differentiate them.
        """
        if tape.packs:
            return self._rules(tape)
        if not self._has_seen_backward:
            self._has_seen_backward = True
            return BackwardObserver(self._found)
        return nullcontext() if self._found.runs_backward else self._rules(tape)

    @contextmanager
    def _rules(self, tape: SplitTape) -> Iterator[None]:
        """Within it, the module's calls that have a rule are recorded on the tape."""
        recording, outside = self._recording, None in self._found.callers
        recording.tape, recording.intercepts = tape, outside
        try:
            with replaced(self._forwards), Interception(tape) if outside else nullcontext():
                yield
        finally:
            recording.tape = _NO_TAPE


_NO_TAPE = SplitTape()


class _State:
    """The random state and all else that code can change, as the first F found it."""

    def __init__(self, roots: Sequence[Any], given: Sequence[Any]) -> None:
        self._picture = picture_of(*roots, given=given)
        self._random = torch.get_rng_state()
        cuda: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._cuda = torch.cuda.get_rng_state_all() if cuda else None

    def put_back(self) -> None:
        self._picture.put_back()
        torch.set_rng_state(self._random)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)


def _is_attention(module: nn.Module) -> TypeGuard[nn.MultiheadAttention]:
    return type(module) is nn.MultiheadAttention and can_record()


def _tracked(part: nn.Module, path: list[nn.Module]) -> Forward:
    return Compiled(part) if _is_compiled(part) else RunningModules(part, path)


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """The module and its sub-modules, each once; the inside of a compiled one is left out."""
    seen = set()
    to_visit = [module]
    while to_visit:
        part = to_visit.pop()
        if part in seen or isinstance(part, torch.jit.ScriptModule):
            continue
        seen.add(part)
        yield part
        if not _is_compiled(part):
            to_visit.extend(part.children())


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
