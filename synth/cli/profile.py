"""`synth profile`: measure a model's layers on this machine's device."""

from typing import Annotated

import typer

from synth.cli.read.profile_request import ProfileRequest


def command(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Built-in model (gpt-bytes, gpt2-small, llama3-8b, …); hf:NAME or hf:config.json "
            "of Hugging Face; path/to/file.py:function or package.module:function that returns a "
            "whole module or a list of layers; or a .csv file of times that were measured "
            "elsewhere.",
        ),
    ],
    request: ProfileRequest,
) -> None:
    """Measure MODEL layer by layer: time and memory of F, B, W, BW and STEP.

    Under torchrun, rank 0 measures the layers, and all ranks the links between them.
    """
    from synth.cli.work.profile import work

    work(context, model, request)
