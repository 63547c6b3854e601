"""The recurrent job-shop with versions of the weights: what schedules without a flush keep.

The weights that F reads are late by −h(F, W) micro-batches: with 2BW by k at most, with vertical
sync by no more than those of the first stage. Memory counts the stashed versions
(`stashed_versions`).

An update takes its time once in k micro-batches, the model STEP / k in each. No order that repeats
every micro-batch takes less: the mean start times of k micro-batches in a row satisfy the model.
"""

from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.flush_free.stashed_versions import StashedVersions
from synth.solver.instance.instance import STEP, F, Instance, W
from synth.solver.modulo.cyclic_ops import Expression, with_times
from synth.solver.modulo.recurrent_job_shop import CyclicOp, RecurrentJobShop, latest_start


def flush_free_model(
    flush_free: FlushFreeProblem,
    instance: Instance,
    interval: int,
    ticks_per_us: int,
    *,
    is_relaxed: bool,
) -> RecurrentJobShop:
    """Build the model at one interval.

    Args:
        flush_free: the rule of versions, and the bytes of the parameters.
        instance: the problem's instance, under a memory model.
        interval: in ticks.
        ticks_per_us: all times are whole numbers of ticks.
        is_relaxed: round down what is no whole number, so that a refutation is a proof.
    """
    scaled = with_times(instance, ticks_per_us.__mul__, ticks_per_us.__mul__)
    steps = [copy.duration_us[STEP] for copy in scaled.copies]
    every = flush_free.every
    update = tuple(step // every if is_relaxed else -(-step // every) for step in steps)
    latest = _latest(flush_free, scaled, interval)
    shop = RecurrentJobShop(scaled, interval, latest, update=update, is_fusible=True)
    shop.add_links()
    _limit_delays(flush_free, shop)
    for held, headroom in zip(instance.held, instance.headroom_bytes, strict=True):
        if headroom is not None:
            versions = StashedVersions(shop.cp, flush_free, instance, shop.run, shop.most)
            shop.add_memory(held, headroom, versions)
    return shop


def _latest(flush_free: FlushFreeProblem, instance: Instance, interval: int) -> int:
    """Return an upper bound on all starts (see `latest_start`).

    Only W's may gain by waiting: those of the first stage with vertical sync, so that no stage is
    later; and with 2BW, where W's that are late by an update save the second version. Stages that
    hold theirs in turn may gain by any wait; but no F of 2BW comes k + 1 intervals or more before
    its W, and all F's and B's come between F and W of the first stage.
    """
    is_limited = any(headroom is not None for headroom in instance.headroom_bytes)
    if flush_free.consistency != Consistency.TWO_VERSIONS or not is_limited:
        return latest_start(instance, interval)
    if instance.holds_several:
        return 2 * (flush_free.every + 1) * interval
    return latest_start(instance, interval, flush_free.every)


def _limit_delays(flush_free: FlushFreeProblem, shop: RecurrentJobShop) -> None:
    """Let every version be there when it is read."""

    def late(index: int) -> Expression:
        """The micro-batches without an update when F of a copy runs."""
        return -shop.run(CyclicOp(index, W), CyclicOp(index, F))

    first = shop.instance.index[0, 0]
    for index in range(len(shop.instance)):
        if flush_free.consistency == Consistency.VERTICAL:
            shop.cp.add(late(index) <= late(first))
        elif flush_free.consistency == Consistency.TWO_VERSIONS:
            shop.cp.add(late(index) <= flush_free.every)
