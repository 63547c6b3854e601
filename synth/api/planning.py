"""`synth.plan_layout`: the best layout of a whole run, as `synth plan` finds it."""

import time
from collections.abc import Callable, Sequence

from synth.api.front import check_callable, named_as_arguments, stopped_behind
from synth.layouts.answer import LayoutAnswer
from synth.options.arguments.plan import LayoutArguments
from synth.options.layout_task import read_layout_task
from synth.records.command_option import from_values
from synth.records.safe_read import AnyPath


@named_as_arguments
def plan_layout(
    model: AnyPath,
    device: AnyPath,
    *,
    gpus: int,
    global_batch: int,
    seq_len: int = 4096,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    runtime: str = "synth",
    also: str | Sequence[str] | None = None,
    dtype: str = "bf16",
    fp8_param_gather: bool = False,
    optimizer: str = "adamw+master+float32-gradients",
    software: str | None = None,
    calibration: str | None = None,
    mem_limit: str | int | None = None,
    time_limit: str | float = 120,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Callable[[str, LayoutAnswer], None] | None = None,
) -> LayoutAnswer:
    """Find the best layout of a model's training on a number of devices that need not be there.

    Ctrl-C ends the search; the answer so far is returned.

    Args:
        model: a `config.json` of Hugging Face's library, its folder, or the name of a known model.
        device: the name of a known device, or a JSON file of one.
        gpus: number of devices.
        global_batch: sequences of a step.
        seq_len: tokens per sequence.
        nodes: number of nodes, among which the devices are shared equally; None: as many as
            `gpus_per_node` gives.
        gpus_per_node: devices that fast links connect; None: as the device has it.
        runtime: the program that will execute the pipeline, as of `synth.solve`.
        also: layouts to judge in any case, such as `"tp=8,pp=4,vp=5"`.
        dtype: of the factors of matrices: bf16, fp8 or fp4.
        fp8_param_gather: with fp8 and ZeRO-1, matrices are kept and gathered in float8.
        optimizer: with the dtypes of its state.
        software: the training program, as of `synth.estimate`; None: that of the runtime.
        calibration: a file of `synth calibrate`, or none; None: the shipped one, if any.
        mem_limit: memory limit of a device, as of `synth.solve`.
        time_limit: the time limit of the search, in seconds.
        seed: the seed of the search.
        workers: number of solver threads; None: one per core.
        on_progress: called with what is done next, and the answer so far.

    Returns:
        The answer: `best`, `ranked`, `also`, `bound_us`, `gap`, `stability`; `best.plan` is the
        plan of the pipeline.

    Raises:
        SynthError: an argument is not understood, or they do not go together.

    Example:
        >>> answer = synth.plan_layout("llama3-70b", "h100", gpus=64, global_batch=512)
        >>> answer.best.layout.words, answer.gap
    """
    options = locals()
    options["model"], options["device"] = str(model), str(device)
    check_callable(on_progress, "on_progress")
    given = from_values(LayoutArguments, options)
    began, task = time.monotonic(), read_layout_task(given)
    listener = on_progress or (lambda text, answer: None)
    with stopped_behind() as stop:
        search = task.search(given.time_limit - (time.monotonic() - began), stop, listener)
        try:
            return search.run()
        except KeyboardInterrupt:
            found = search.answer.so_far()
            found.is_interrupted = True
            return found
