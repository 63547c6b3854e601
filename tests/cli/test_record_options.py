"""A record is the one declaration of a command's options: in help, on the line and in a worker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import typer
from pydantic import NonNegativeInt
from typer.testing import CliRunner

from synth.cli.read.record_options import with_record
from synth.cli.run import RunRequest
from synth.errors import SynthError
from synth.options.arguments.compare import CompareArguments
from synth.options.arguments.curve import CurveArguments
from synth.options.arguments.groups import MemoryArguments
from synth.options.arguments.solve import SolveArguments
from synth.profile.optimizer import OptimizerSpec
from synth.records.command_option import (
    After,
    CommandArgument,
    CommandOption,
    from_values,
    written,
)
from synth.records.record import Record
from synth.run_options.train_options import TrainOptions


def parsed(*words: str) -> RunRequest:
    """The request that `synth run` makes of some options."""
    seen: list[RunRequest] = []
    app = typer.Typer()
    app.command()(with_record(RunRequest, seen.append))
    CliRunner().invoke(app, ["plan.json", *words], catch_exceptions=False)
    (request,) = seen
    return request


def undeclared(record: type[Record]) -> Iterator[str]:
    """Yield the fields that are no options, also those of records within."""
    for name, field in record.model_fields.items():
        if any(isinstance(each, CommandOption | CommandArgument) for each in field.metadata):
            continue
        inner = [k for k in (field.annotation, *getattr(field.annotation, "__args__", ()))]
        groups = [k for k in inner if isinstance(k, type) and issubclass(k, Record)]
        if not groups:
            yield name
        for group in groups:
            yield from undeclared(group)


@pytest.mark.parametrize("record", [TrainOptions, SolveArguments, CompareArguments, CurveArguments])
def test_every_field_is_an_option(record: type[Record]) -> None:
    assert list(undeclared(record)) == []


def test_no_options_make_the_defaults_of_the_record() -> None:
    assert parsed() == RunRequest(plan=Path("plan.json"))


def test_options_reach_the_records_within_and_come_unchanged_to_a_worker(tmp_path: Path) -> None:
    request = parsed(
        *("--data", "text", "--clip", "0", "--betas", "0.9,0.95", "--optimizer", "adamw"),
        *("--master-weights", "--lr", "0.1", "--schedule", "cosine", "--min-lr", "0.01"),
        *("--checkpoint", str(tmp_path), "--checkpoint-keep", "0", "--resume-from", "012"),
    )
    training, saved = request.training, request.training.checkpoint
    assert (training.clip_norm, training.betas) == (None, (0.9, 0.95))
    assert training.optimizer_of(OptimizerSpec()) == OptimizerSpec(master_weights=True)
    assert (training.learning_rate.peak, training.learning_rate.least) == (0.1, 0.01)
    assert saved is not None
    assert (saved.folder, saved.every, saved.keep, saved.resume_from) == (tmp_path, 100, 0, 12)
    assert TrainOptions.model_validate_json(training.model_dump_json()) == training


def test_what_the_command_refuses_the_library_refuses_too() -> None:
    with pytest.raises(SynthError, match="--restarts continues from checkpoints"):
        TrainOptions(data=Path("text"), restarts=1)
    with pytest.raises(SynthError, match="--data text and --inputs f are both given"):
        TrainOptions(data=Path("text"), inputs="f")


def test_an_option_stands_where_its_record_puts_it_and_has_the_limits_of_its_type() -> None:
    class Late(Record):
        first: Annotated[NonNegativeInt, CommandOption("First.")] = 3
        last: Annotated[bool, CommandOption("Last.")] = False
        second: Annotated[int | None, After("--first"), CommandOption("Second.")] = None

    app = typer.Typer()
    app.command()(with_record(Late, print))
    options = [p.opts[0] for p in typer.main.get_command(app).params]
    assert options[:3] == ["--first", "--second", "--last"]
    refused = CliRunner().invoke(app, ["--first", "-1"])
    assert refused.exit_code == 2
    assert CliRunner().invoke(app, ["--second", "5"]).output == "first=3 last=False second=5\n"


def test_a_group_without_a_default_has_required_options_and_arguments() -> None:
    class Needed(Record):
        place: Annotated[str, CommandArgument("Place.", metavar="PLACE")]
        count: Annotated[int, CommandOption("Count.", names=("--count", "-c"))]
        size: Annotated[int, CommandOption("Size.")] = 1

    class Whole(Record):
        needed: Needed
        last: Annotated[bool, CommandOption("Last.")] = False

    app = typer.Typer()
    app.command()(with_record(Whole, lambda whole: print(repr(whole.needed), whole.last)))
    made = CliRunner().invoke(app, ["here", "-c", "2", "--last"])
    assert made.output == "Needed(place='here', count=2, size=1) True\n"
    for missing, words in (("PLACE", ["-c", "2"]), ("--count", ["here"])):
        refused = CliRunner().invoke(app, words)
        assert refused.exit_code == 2 and missing in refused.output


SAME: list[tuple[str, dict[str, Any]]] = [
    ("--mem-limit 40GB --mem-reserve 1.5GB", {"mem_limit": 40 * 10**9, "mem_reserve": 1.5e9}),
    ("--mem-limit 1GiB,2GiB", {"mem_limit": [np.int64(2**30), 2**31]}),
    ("--mem-limit min --target 850ms", {"mem_limit": "min", "target": 0.85}),
    ("--target 105%", {"target": "105%"}),
    ("--time-limit 2m --gap 1%", {"time_limit": 120, "gap": 0.01}),
    ("--partition 3,2", {"partition": (3, 2)}),
    ("--partition search", {"partition": "auto"}),
    ("--objective iterations:8", {"objective": "iterations:8"}),
    ("--for torch --offload", {"runtime": "torch", "offload": True}),
    ("--link 10us,25GB/s --peak-flops 1TFLOPS", {"link": "10us,25GB/s", "peak_flops": 1e12}),
]


@pytest.mark.parametrize(("words", "values"), SAME)
def test_texts_and_values_make_the_same_record(words: str, values: dict[str, Any]) -> None:
    made: list[SolveArguments] = []
    app = typer.Typer()
    app.command()(with_record(SolveArguments, made.append))
    size = ["mine.json", "--ranks", "2", "--micro-batches", "4"]
    CliRunner().invoke(app, [*size, *words.split()], catch_exceptions=False)
    of_python = {"profile": Path("mine.json"), "ranks": 2, "micro_batches": 4.0, **values}
    assert made == [from_values(SolveArguments, of_python)]


@pytest.mark.parametrize(
    "text", ["40GB", "37.5GiB", "1234567B", "1GB,2GB", "1536MiB", "0.5kB", "auto", "min"]
)
def test_a_limit_is_written_as_it_is_read(text: str) -> None:
    limit = MemoryArguments.model_validate({"mem_limit": text})
    assert MemoryArguments.model_validate({"mem_limit": written(limit, "mem_limit")}) == limit


@pytest.mark.parametrize("text", ["850ms", "1.2s", "20us", "105%", "100.5%", "steady"])
def test_a_target_is_written_as_it_is_read(text: str) -> None:
    values = {"profile": "mine", "ranks": 2, "micro_batches": 4}
    given = from_values(SolveArguments, {**values, "target": text})
    assert from_values(SolveArguments, {**values, "target": written(given, "target")}) == given
