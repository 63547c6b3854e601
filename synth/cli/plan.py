"""`synth plan`: the best layout of a whole run on devices that need not be there."""

from synth.cli.read.plan_request import PlanRequest


def command(request: PlanRequest) -> None:
    """Choose the layout of MODEL's training: tensor, context, expert, data, pipeline parallelism.

    Every legal layout has a lower bound on its time; those that can win are judged by published
    schedules, and the best are solved. Times and bytes are those of `synth estimate`.
    """
    from synth.cli.work.plan import work

    work(request)
