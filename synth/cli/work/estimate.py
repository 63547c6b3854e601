"""The work of `synth estimate`."""

import shlex
import sys

from synth.cli.answer.output import Format, answer, answer_json, talk
from synth.cli.answer.profile import profile_summary
from synth.cli.estimate import EstimateRequest
from synth.estimates.layout import Layout
from synth.estimates.model_shape import ModelShape
from synth.options.estimator import estimator_of
from synth.units import counted


def work(request: EstimateRequest) -> None:
    request.check_files(request.arguments.model)
    estimator = estimator_of(request.arguments)
    command = shlex.join(("synth", *sys.argv[1:]))
    profile = estimator.profile(name=request.name, command=command, variants=True)
    talk(_described(estimator.shape, estimator.layout))
    if request.output is not None:
        profile.save(request.output)
    if request.format == Format.JSON:
        answer_json(profile.to_data())
    else:
        answer(profile_summary(profile))
    if request.output is None:
        talk("not saved: give -o profile.json")
    else:
        talk(f"written: {request.output}; `synth solve {request.output} -r RANKS -m MICRO-BATCHES`")


def _described(shape: ModelShape, layout: Layout) -> str:
    """Say how large the model is that was read, so that another one is noticed."""
    layers = counted(shape.layers, "layer")
    size = f"{shape.name}: {layers}, {shape.parameters / 1e9:.2f} billion parameters"
    if shape.left_out:
        size += f" of its text part alone (without its {' and '.join(shape.left_out)})"
    if shape.experts is None:
        return size
    size += f", {shape.parameters_of_a_token / 1e9:.2f} billion of a token"
    shared = "" if layout.expert > 1 else "; each rank has all experts (--ep 1)"
    return f"{size}{shared}"
