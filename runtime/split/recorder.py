"""Runs a module's Fs on tapes, and intercepts torch's functions only where that is needed.

Interception costs every call in F, whether there is a rule for it or not. So the first F is plain
autograd's, and observed: later, only the modules in which it met calls with a rule are intercepted.
In most models these are `nn.Linear` modules, which are given another `forward` while F runs.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from .forwards import Forward, Intercepted, RecordedLinear, Recording, Tracked, replaced
from .interception import Interception
from .listeners import find_listened
from .observation import Findings, Observer
from .tape import OutputGradients, Outputs, SplitTape


class Recorder:
    """One module; its Fs come one at a time.

    A call with a rule that first occurs in a later F, in a module that had none, is left to
    autograd; so is a stage that runs a backward of its own.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._findings: Findings | None = None
        self._observed: SplitTape | None = None
        self._forwards: list[Forward] = []
        self._recording = Recording()
        self._listened: Mapping[int, Tensor] = {}

    def look_for_listeners(self) -> None:
        """Find out whose gradients are listened to; called while no micro-batch is under way."""
        self._listened = find_listened(self._module.parameters())

    def new_tape(self) -> SplitTape:
        """A tape for one micro-batch."""
        mixed = self._findings.mixed if self._findings is not None and self._listened else ()
        left = frozenset(key for key in mixed if key in self._listened)
        return SplitTape(listened=self._listened, left=left)

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
        path: list[nn.Module] = []
        findings, parts = Findings(), list(_parts(self._module))
        observer = Observer(findings, path, in_backward=False)
        with replaced([Tracked(part, path) for part in parts]), observer:
            output = fn(*arguments)
        observer.compare_uses(output)
        self._findings, self._observed = findings, tape
        self._forwards = [f for part in parts if (f := self._forward_of(part)) is not None]
        tape.recomputes = True  # its B is observed, too
        return output

    def _forward_of(self, part: nn.Module) -> Forward | None:
        assert self._findings is not None
        if type(part) is nn.Linear and "forward" not in vars(part):
            return RecordedLinear(part, self._recording)
        return Intercepted(part, self._recording) if part in self._findings.callers else None

    def _rules_in_backward(self, tape: SplitTape) -> AbstractContextManager[object]:
        assert self._findings is not None
        if tape is self._observed:
            self._observed = None
            return Observer(self._findings, [], in_backward=True)
        if self._findings.runs_backward and not tape.packs:
            return nullcontext()
        return self._rules(tape)

    @contextmanager
    def _rules(self, tape: SplitTape) -> Iterator[None]:
        """Within it, the module's calls that have a rule are recorded on the tape."""
        assert self._findings is not None
        recording, outside = self._recording, None in self._findings.callers
        recording.tape, recording.intercepts = tape, outside
        try:
            with replaced(self._forwards), Interception(tape) if outside else nullcontext():
                yield
        finally:
            recording.tape = _NO_TAPE


_NO_TAPE = SplitTape()


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """The module and those in it, each once; compiled ones are left as they are."""
    seen = set()
    to_visit = [module]
    while to_visit:
        part = to_visit.pop()
        if part in seen or _is_compiled(part):
            continue
        seen.add(part)
        yield part
        to_visit.extend(part.children())


def _is_compiled(module: nn.Module) -> bool:
    by_dynamo = type(module).__name__ == "OptimizedModule"
    return (
        by_dynamo
        or module._compiled_call_impl is not None
        or isinstance(module, torch.jit.ScriptModule)
    )
