"""Mistakes of users, on the command line and in Python, and the whole text that answers them."""

import contextlib
from collections.abc import Iterator
from typing import Any

import synth
from synth.errors import SynthError
from tests.golden.commands import empty_folder, lines_of, run
from tests.golden.golden_set import GoldenSet
from tests.golden.inputs import write_inputs

_PROFILE = "zb-1.5b-p8-m24"
_SIZE = "-r 4 -m 8"
_SOLVE = f"solve {_PROFILE} {_SIZE}"
_COMPARE = f"compare {_PROFILE} {_SIZE} --no-solve"
_FRONTIER = f"frontier {_PROFILE} {_SIZE} -o curve.json"
_RUN = "run run.json --device cpu"

_COMMANDS = [
    # the program
    "slove x",
    "--colour",
    # required words, and values that are no choice
    "solve",
    f"solve {_PROFILE} -m 8",
    f"{_SOLVE} --ranks 0",
    f"{_SOLVE} --ranks four",
    f"{_SOLVE} --solver gurobi",
    f"{_SOLVE} --weight ring",
    f"{_SOLVE} --weights foo",
    f"{_SOLVE} --rank-speed 1",
    f"solve . {_SIZE}",
    f"{_SOLVE} -o ''",
    # estimates
    "estimate llama3-70b",
    "estimate llama9 --device h100",
    "estimate llama3-70b --device h1000",
    "estimate llama3-70b --device a100 --dtype fp8",
    "estimate llama3-70b --device h100 --tp 3 --seq-len 3072",
    "estimate llama3-70b --device h100 --ep 8",
    "estimate llama3-70b --device h100 --software word",
    # layouts
    "plan llama3-8b --device h100",
    "plan llama3-8b --device h100 --gpus 12 --global-batch 12",
    "plan llama3-8b --device h100 --gpus 8 --global-batch 8 --also tp=3",
    "plan llama3-8b --device h100 --gpus 8 --global-batch 8 --also tp=2,pp=4,dp=2",
    "plan llama3-8b --device h100 --gpus 8 --global-batch 8 --also size=2",
    "plan llama3-8b --device h100 --gpus 8 --global-batch 8 --also pp=2,schedule=nosuch",
    "plan llama3-8b --device h100 --gpus 8 --global-batch 8 --mem-limit min",
    "plan llama3-405b --device h100 --gpus 1 --global-batch 1",
    "calibrate nothing --device h100",
    "solve llama9-h100-tp8 -r 4 -m 8",
    # sizes, times, shares
    f"{_SOLVE} --mem-limit 40",
    f"{_SOLVE} --mem-limit 40G",
    f"{_SOLVE} --mem-limit 0GB",
    f"{_SOLVE} --mem-limit 1GB,2GB",
    f"{_SOLVE} --mem-limit auto --mem-reserve 100GB",
    f"{_SOLVE} --mem-limit none --mem-reserve 1GB",
    f"{_SOLVE} --time-limit soon",
    f"{_SOLVE} --time-limit 0",
    f"{_SOLVE} --gap 200%",
    f"{_SOLVE} --link fast",
    f"{_SOLVE} --link 10us,25",
    f"{_SOLVE} --peak-flops 989T",
    f"{_SOLVE} --objective speed",
    f"{_SOLVE} --objective iterations:0",
    # placements, layers, recomputation
    f"{_SOLVE} --placement w",
    f"{_SOLVE} --placement looped",
    f"{_SOLVE} --partition 6,6,6",
    f"{_SOLVE} --partition 6,6,6,x",
    f"{_SOLVE} --partition 6,6,6,7",
    f"{_SOLVE} --partition 6,0,12,6",
    f"{_SOLVE} --recompute 7 --placement linear",
    f"{_SOLVE} --recompute layers:20-30",
    f"solve {_PROFILE} -r 25 -m 8",
    f"solve {_PROFILE} -r 4 -m 100000000",
    # infeasible
    "solve gpt-bytes-cpu -r 2 -m 2 --mem-limit 3MB",
    f"{_SOLVE} --mem-limit 10GB --placement linear --partition even --recompute none",
    f"{_SOLVE} --weights gather --mem-limit 10GB",
    f"{_SOLVE} --versions stash --mem-limit 10GB",
    # options that do not go together
    f"{_SOLVE} --mem-limit min",
    f"{_SOLVE} --target 105%",
    f"{_SOLVE} --mem-limit min --target 850",
    f"{_SOLVE} --mem-limit min --target 90%",
    f"{_SOLVE} --mem-limit min --target 2s --deterministic",
    f"{_SOLVE} --weights ring --placement v",
    f"{_SOLVE} --weights ring -m 6",
    f"{_SOLVE} --weights gather --hint zero3",
    f"{_SOLVE} --data-parallel 2 --placement bidirectional",
    f"{_SOLVE} --data-parallel 2 --weights ring",
    f"{_SOLVE} --versions 3bw",
    f"{_SOLVE} --versions 2bw:every=5",
    f"{_SOLVE} --versions 2bw --objective period",
    f"{_SOLVE} --for torch --placement bidirectional",
    f"{_SOLVE} --for torch --recompute all",
    f"{_SOLVE} --for megatron --offload",
    f"{_SOLVE} --solver milp --weights ring",
    f"{_SOLVE} --hint 2f2b",
    f"{_SOLVE} --hint gone.json",
    f"{_SOLVE} --hint again.json",
    # profiles and output files
    f"solve gpt5 {_SIZE}",
    f"solve gone.json {_SIZE}",
    f"solve plan.json {_SIZE}",
    f"solve notes.txt {_SIZE}",
    f"solve negative.json {_SIZE}",
    f"{_SOLVE} -o .",
    f"{_SOLVE} -o no/such/plan.json",
    f"{_SOLVE} -o notes.txt",
    f"{_SOLVE} -o notes.txt/plan.json",
    # compare
    f"{_COMPARE} --only 2f2b",
    f"{_COMPARE} --only interleaved:2,depth=3",
    f"{_COMPARE} --planner gpipe",
    f"{_COMPARE} --versions stash",
    f"{_COMPARE} --recompute all",
    f"{_COMPARE} --mem-limit min",
    f"{_COMPARE} --partition 12,12",
    f"{_COMPARE} --picture plot.gif",
    f"{_COMPARE} --only gpipe --html notes.txt",
    f"{_COMPARE} --only gpipe --save notes.txt",
    f"compare {_PROFILE} -r 3 -m 4 --only chimera --no-solve",
    f"compare {_PROFILE} {_SIZE} --recompute 0,1",
    # frontier
    f"frontier {_PROFILE} {_SIZE}",
    f"{_FRONTIER} --points 1",
    f"{_FRONTIER} --placement auto",
    f"{_FRONTIER} --partition 6,6",
    f"{_FRONTIER} --weights ring --recompute layers:0-3",
    f"{_FRONTIER} --weights auto -m 6",
    f"frontier {_PROFILE} {_SIZE} -o c.svg --picture c.svg",
    f"frontier {_PROFILE} {_SIZE} -o plan.json",
    # check
    "check gone.json",
    "check .",
    "check notes.txt",
    "check notes.json",
    "check profile.json",
    "check cut.json",
    "check missing.json",
    "check changed.json",
    "check faster.json",
    "check tight.json",
    "check newer.json",
    "check field.json",
    "check kind.json",
    "check plan.json --profile zb-6.2b-p8-m24",
    "check plan.json --time-limit 5s",
    "check plan.json --all-provers",
    # show
    "show missing.json",
    "show plan.json --width 3",
    "show plan.json --ranks 2-9",
    "show plan.json --from 1h",
    "show plan.json --to soon",
    "show plan.json --against zb-v --html page.html",
    "show plan.json --against best --html page.html",
    "show plan.json --against 1f1b",
    "show plan.json --measured other_trace.json",
    "show plan.json --measured plan.json",
    "show plan.json --trace notes.txt",
    "show plan.json --picture chart.bmp",
    # ui
    "ui gone.json",
    "ui notes.txt",
    "ui --listen 0.0.0.0",
    "ui --most-ops 100",
    "ui --port 0",
    # export and import
    "export plan.json --to deepspeed",
    "export plan.json --to torchtitan",
    "export plan.json --to torchtitan -o a.csv",
    "export plan.json --layer block=t",
    "export plan.json --to megatron --layer block",
    "export plan.json -o notes.txt",
    f"import gone.csv {_PROFILE} -o imported.json",
    f"import odd.csv {_PROFILE} -o imported.json",
    f"import late.csv {_PROFILE} -o imported.json",
    f"import plan.json {_PROFILE} -o -",
    f"import schedule.csv {_PROFILE} -o imported.json --partition auto",
    f"import schedule.csv {_PROFILE}",
    # profile, of times in a table
    "profile times.csv",
    "profile times.csv -o p.json --ranks 2",
    "profile times.csv -o p.json --peak-flops fast",
    "profile columns.csv -o p.json",
    "profile twice.csv -o p.json",
    "profile negative.csv -o p.json",
    "profile gone.csv -o p.json",
    # schema
    "schema plans",
    "schema plan --folder notes.txt",
    # emulate, rehearse and run, before any process starts
    "emulate gone.json",
    "emulate run.json --steps 2",
    "emulate run.json --times 0",
    "emulate run.json --sizes nan",
    "emulate run.json --trace notes.txt",
    "rehearse plan.json",
    "rehearse run.json --ranks 0,2",
    "rehearse run.json --ranks first",
    "rehearse run.json -o run.json",
    _RUN,
    "run plan.json --data text.txt --device cpu",
    "run own.json --data text.txt --device cpu",
    "run own.json --data text.txt --device cpu --trust --model mine.py:layers",
    f"{_RUN} --data gone.txt",
    f"{_RUN} --data short.txt",
    f"{_RUN} --data text.txt --inputs model.py:batch",
    f"{_RUN} --data text.txt --export-format dcp",
    f"{_RUN} --data text.txt --weights-from nothing",
    f"{_RUN} --data text.txt --export-weights .",
    f"{_RUN} --data text.txt --lr nan",
    f"{_RUN} --data text.txt --min-lr 1e-5",
    f"{_RUN} --data text.txt --optimizer lion",
    f"{_RUN} --data text.txt --float32-gradients",
    f"{_RUN} --data text.txt --checkpoint-every 5",
    f"{_RUN} --data text.txt --resume",
    f"{_RUN} --data text.txt --resume-from best",
    f"{_RUN} --data text.txt --restarts 1",
    f"{_RUN} --data text.txt --trace-every 2",
    f"{_RUN} --data text.txt --weight-prediction",
    f"{_RUN} --data text.txt -o notes.txt",
]

# These import torch.
_COMMANDS_WITH_TORCH = [
    "profile gtp -o p.json",
    "profile missing.py:layers -o p.json",
    "profile model.py:layers -o p.json --device cpu",
    "profile model.py:nothing -o p.json",
    "profile gpt --arg depth=3 -o p.json",
    "profile gpt-bytes --dtype float8 -o p.json",
    "profile gpt-bytes --device tpu -o p.json",
]

_CALLS = [
    "synth.solve('gpt5', ranks=4, micro_batches=8)",
    "synth.solve(None, ranks=4, micro_batches=8)",
    "synth.solve(PLAN, ranks=4, micro_batches=8)",
    "synth.solve(PROFILE, ranks=4)",
    "synth.solve(PROFILE, ranks='4', micro_batches=8)",
    "synth.solve(PROFILE, ranks=4, micro_batches=0)",
    "synth.solve(PROFILE, ranks=4, micro_batches=8, memory='40GB')",
    "synth.solve(PROFILE, ranks=4, micro_batches=8, mem_limit='40G')",
    "synth.solve(PROFILE, ranks=4, micro_batches=8, mem_limit=0.5)",
    "synth.solve(PROFILE, ranks=4, micro_batches=8, mem_limit=[1, 2])",
    "synth.solve(PROFILE, ranks=4, micro_batches=8, mem_limit='min')",
    "synth.solve('gpt-bytes-cpu', ranks=2, micro_batches=2, mem_limit='3MB')",
    "synth.solve(PROFILE, ranks=4, micro_batches=8, partition=6)",
    "synth.solve(PROFILE, ranks=4, micro_batches=8, partition=(6, 6, 6))",
    "synth.solve(PROFILE, ranks=4, micro_batches=8, recompute=[0, 1])",
    "synth.solve(PROFILE, ranks=4, micro_batches=8, runtime='deepspeed')",
    "synth.solve(PROFILE, ranks=4, micro_batches=8, weights='ring', placement='v')",
    "synth.solve(PROFILE, ranks=4, micro_batches=8, versions='newest')",
    "synth.solve(PROFILE, ranks=4, micro_batches=8, time_limit=0)",
    "synth.solve(PROFILE, ranks=4, micro_batches=8, hint=PLAN.schedule())",
    "synth.solve(PROFILE, ranks=4, micro_batches=9, hint=PLAN)",
    "synth.solve(PROFILE, ranks=4, micro_batches=8, on_improvement=3)",
    "synth.compare(PROFILE, ranks=4, micro_batches=8, only='2f2b')",
    "synth.compare(PROFILE, ranks=4, micro_batches=8, only=3)",
    "synth.compare(PROFILE, ranks=4, micro_batches=8, recompute='all')",
    "synth.compare(PROFILE, ranks=4, micro_batches=8, placement=None, planner='gpipe')",
    "synth.frontier(PROFILE, ranks=4, micro_batches=8, points=1)",
    "synth.frontier(PROFILE, ranks=4, micro_batches=8, placement='auto')",
    "synth.frontier(PROFILE, ranks=4, micro_batches=8, begun=PLAN)",
    "synth.simulate('1f2b', PROFILE, ranks=4, micro_batches=8)",
    "synth.simulate('1f1b', PROFILE)",
    "synth.simulate('chimera', PROFILE, ranks=3, micro_batches=4)",
    "synth.simulate('1f1b', PROFILE, ranks=4, micro_batches=8, mem_limit='20GB')",
    "synth.simulate(PLAN.schedule(), PROFILE, micro_batches=9)",
    "synth.simulate(PLAN, PROFILE)",
    "synth.Plan.load('gone.json')",
    "synth.Plan.load('cut.json')",
    "synth.Plan.load('missing.json').check()",
    "synth.Plan.load('faster.json').check()",
    "synth.Profile.load('plan.json')",
    "synth.Profile.load('negative.json')",
    "synth.Profile.from_times('mine', [{'name': 'block'}])",
    "PLAN.modules(7, list(range(24)))",
    "PLAN.save('no/such/plan.json')",
    "synth.solved",
]

# `Pipeline` imports torch.
_CALLS_WITH_TORCH = [
    "synth.Pipeline(PLAN)",
    "synth.Pipeline(PLAN, layers(6))",
    "synth.Pipeline(PLAN, layers(6), lr=0.1)",
]

# Each in a process group of one rank.
_CALLS_OF_A_RANK = [
    "synth.Pipeline(3, layers(2))",
    "synth.Pipeline('gone.json', layers(2))",
    "synth.Pipeline('missing.json', layers(2))",
    "synth.Pipeline('plan.json', layers(6))",
    "synth.Pipeline('one.json', {0: 'block'})",
    "synth.Pipeline('one.json', {3: layers(2)[0]})",
    "synth.Pipeline('one.json', layers(2), loss=3)",
    "synth.Pipeline('one.json', layers(2), timeout_s=0)",
    "synth.Pipeline('one.json', layers(2), loss=sum).step(3)",
    "synth.Pipeline('one.json', layers(2), loss=sum).clip_grad_norm_(-1)",
]


def error_of(command: str) -> dict[str, Any]:
    """Return the exit code of a command, and the lines that it wrote."""
    ended = run(command)
    wrote = {"stdout": ended.stdout, "stderr": ended.stderr}
    return {
        "exit_code": ended.code,
        **{name: lines_of(text) for name, text in wrote.items() if text},
    }


def error_of_call(expression: str) -> dict[str, Any]:
    """Return the type of the exception of a call, and its text."""
    plan = synth.Plan.load("plan.json")
    names = {"synth": synth, "PROFILE": _PROFILE, "PLAN": plan, "layers": _layers}
    try:
        with _one_rank() if expression in _CALLS_OF_A_RANK else contextlib.nullcontext():
            found = eval(expression, names)
    except (SynthError, TypeError, ValueError, AttributeError, OSError) as error:
        return {"raises": type(error).__name__, "text": lines_of(str(error))}
    raise AssertionError(f"{expression} is no mistake: {found!r}")


def _layers(number: int) -> list[Any]:
    from torch import nn

    return [nn.Linear(4, 4) for _ in range(number)]


@contextlib.contextmanager
def _one_rank() -> Iterator[None]:
    """Work in a process group of this process alone."""
    from torch import distributed
    from torch._C._distributed_c10d import HashStore

    distributed.init_process_group("gloo", rank=0, world_size=1, store=HashStore())
    try:
        yield
    finally:
        distributed.destroy_process_group()


@contextlib.contextmanager
def inputs() -> Iterator[None]:
    """Work in a folder with the files that the cases name."""
    with empty_folder():
        write_inputs()
        yield


COMMAND_ERRORS = GoldenSet("command_errors", [*_COMMANDS, *_COMMANDS_WITH_TORCH], error_of, inputs)
CALL_ERRORS = GoldenSet(
    "call_errors", [*_CALLS, *_CALLS_WITH_TORCH, *_CALLS_OF_A_RANK], error_of_call, inputs
)
