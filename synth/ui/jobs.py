"""Searches that the page starts: one at a time, with the solver and the limits of the commands."""

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from synth.errors import SynthError
from synth.options.arguments.curve import CurveArguments
from synth.options.curve import read_curve
from synth.options.request import NoSchedule
from synth.options.solve_task import read_solve
from synth.plan.choose.candidates import SearchWatch
from synth.plan.memory_curve.curve_file import MemoryCurve, cap_of
from synth.plan.memory_curve.curve_search import Effort, trace
from synth.profile import Profile
from synth.records.command_option import from_values
from synth.schedule.files.plan_file import Plan
from synth.search.best_so_far import BestSoFar
from synth.search.outcome import StoppedBy
from synth.solver.result import Incumbent
from synth.ui.command_line import curve_placement
from synth.ui.drawing import DrawnSchedule
from synth.ui.limits import Limits
from synth.ui.models import Models
from synth.ui.setting import PipelineSetting

# Searches that are kept; a page that was loaded again still reads how its own has ended.
_MOST_ENDED = 16


# Why a search was stopped from outside.
_BY_HAND, _BY_NOBODY = "stopped by hand", "nobody followed it"

# Seconds without anyone who follows it, after which a search of a visitor is stopped.
ALONE_S = 10.0


class Busy(SynthError):
    """Another search is running."""

    def __init__(self, job: str) -> None:
        super().__init__("another search is running; stop it, or wait until it ends")
        self.job = job


class Job:
    """A search in a thread of its own.

    Attributes:
        name: cannot be guessed; who has it may follow and stop the search.
        stop: set it to get the best so far.
        version: grows with each step of progress.
        ended_s: the seconds that it took; None: it is running.
    """

    def __init__(
        self,
        work: "Callable[[Job], None]",
        kind: str = "",
        limit_s: float = threading.TIMEOUT_MAX,
        alone_s: float | None = None,
    ) -> None:
        """Take what it does.

        Args:
            work: reports with `tell`.
            limit_s: seconds after which it is stopped.
            alone_s: seconds that it goes on without anyone who follows it; None: always.
        """
        self.name, self.stop, self.version = secrets.token_urlsafe(16), threading.Event(), 0
        self.kind, self._alone_s, self._followers, self._lock = kind, alone_s, 0, threading.Lock()
        self._by_limit = f"the server's limit of {limit_s:g} s"
        self._limit = threading.Timer(limit_s, lambda: self._end_by(self._by_limit))
        self._limit.daemon = True
        self.ended_s: float | None = None
        self._work, self._began = work, monotonic()
        self._state: Callable[[], dict[str, Any]] = dict
        self._error = self._stopped_because = ""
        self._thread = threading.Thread(target=self._run, name=f"job {self.name}", daemon=True)

    @property
    def is_at_limit(self) -> bool:
        """True if it was stopped at its limit."""
        return self._stopped_because == self._by_limit

    def start(self) -> None:
        self._thread.start()
        self._limit.start()
        self._wait_alone()

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Count someone who follows it."""
        with self._lock:
            self._followers += 1
        try:
            yield
        finally:
            with self._lock:
                self._followers -= 1
            self._wait_alone()

    def _wait_alone(self) -> None:
        if self._alone_s is not None and self.ended_s is None:
            timer = threading.Timer(self._alone_s, self._stop_alone)
            timer.daemon = True
            timer.start()

    def _stop_alone(self) -> None:
        with self._lock:
            is_alone = not self._followers
        if is_alone:
            self._end_by(_BY_NOBODY)

    def end_by_hand(self) -> None:
        """Stop it as somebody asks for it."""
        self._end_by(_BY_HAND)

    def _end_by(self, reason: str) -> None:
        """Stop it; the first reason counts."""
        with self._lock:
            self._stopped_because = self._stopped_because or reason
        self.stop.set()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end."""
        self._thread.join(timeout_s)

    def tell(self, state: Callable[[], dict[str, Any]]) -> None:
        """Report progress: a function that returns it, called when somebody wants to know."""
        self._state = state
        self.version += 1

    def snapshot(self) -> dict[str, Any]:
        """Return the progress so far, as JSON."""
        ended_s = self.ended_s
        elapsed_s = monotonic() - self._began if ended_s is None else ended_s
        return {
            "job": self.name,
            "kind": self.kind,
            "is_running": ended_s is None,
            "is_stopping": self.stop.is_set(),
            "stopped_because": self._stopped_because,
            "elapsed_s": round(elapsed_s, 2),
            "error": self._error,
            **self._state(),
        }

    def _run(self) -> None:
        try:
            self._work(self)
        except SynthError as error:
            self._error = " ".join(str(error).split())
        except BaseException:
            self._error = "the search failed; the terminal of `synth ui` says why"
            raise
        finally:
            self.ended_s = monotonic() - self._began
            self._limit.cancel()
            self.version += 1


class Jobs:
    """The searches of a server, of which one runs at a time."""

    def __init__(self, limits: Limits) -> None:
        """Take the limits; searches of visitors end when nobody follows them."""
        self._limit_s = limits.search_s
        self._alone_s = ALONE_S if limits.is_public else None
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}

    @property
    def running(self) -> Job | None:
        """The search that runs."""
        jobs = list(self._jobs.values())
        return next((job for job in jobs if job.ended_s is None), None)

    def start(self, work: Callable[[Job], None], kind: str) -> Job:
        """Start a search.

        Raises:
            Busy: another one is running.
        """
        with self._lock:
            if (running := self.running) is not None:
                raise Busy(running.name)
            for name in list(self._jobs)[: -_MOST_ENDED + 1]:
                del self._jobs[name]
            job = Job(work, kind, self._limit_s, self._alone_s)
            self._jobs[job.name] = job
            job.start()
            return job

    def find(self, name: str) -> Job:
        """Return a search by its name.

        Raises:
            SynthError: there is none.
        """
        found = self._jobs.get(name)
        if found is None:
            raise SynthError("there is no such search here; start it again")
        return found

    def stop_all(self, wait_s: float) -> None:
        """Stop what runs, and wait for its end."""
        for job in list(self._jobs.values()):
            job.stop.set()
            job.join(wait_s)


def _ended(plan: Plan, job: Job) -> Plan:
    """Return a plan of a search; that it was stopped at the server's limit is a time limit."""
    if not job.is_at_limit or plan.claim.stopped_by != StoppedBy.INTERRUPT:
        return plan
    return plan.replace(claim=plan.claim.replace(stopped_by=StoppedBy.TIME_LIMIT.value))


class PlanSearch:
    """Finds the best plan of a setting, as `synth solve` does; its progress has the incumbent."""

    def __init__(
        self, setting: PipelineSetting, profile: Profile, limits: Limits, models: Models
    ) -> None:
        self._arguments = setting.arguments(profile, limits)
        self._models = models

    def __call__(self, job: Job) -> None:
        task = read_solve(self._arguments)

        def take(found: Incumbent) -> None:
            request = task.request.of(found)
            job.tell(lambda: self._figures(request.plan(found)))

        result = task.search(SearchWatch(BestSoFar(take), job.stop)).result
        if result.schedule is None:
            raise NoSchedule(result)
        plan = _ended(task.request.of(result).plan(result), job)
        job.tell(lambda: {**self._figures(plan), "stopped_by": plan.claim.stopped_by})

    def _figures(self, plan: Plan) -> dict[str, Any]:
        claim = plan.claim
        return {
            "plan": self._models.keep(plan),
            "value_us": claim.value_us,
            "bound_us": claim.lower_bound_us,
            "gap": claim.gap,
            "bound_holds_for": plan.bound_scope,
            "found_by": claim.found_by,
            "drawn": DrawnSchedule(plan, plan.check()[1], plan.caps_bytes).data(),
        }


class CurveTrace:
    """Traces the memory curve of a setting, as `synth frontier` does; each point is a plan."""

    def __init__(
        self,
        setting: PipelineSetting,
        profile: Profile,
        limits: Limits,
        models: Models,
        points: int,
    ) -> None:
        given = {
            "profile": profile,
            "ranks": setting.ranks,
            "micro_batches": setting.micro_batches,
            "placement": curve_placement(setting),
            "objective": setting.objective,
            "link": setting.links,
        }
        self._arguments = from_values(CurveArguments, given)
        self._profile = self._arguments.hardware.profile(profile)
        limit_s = limits.point_s(setting.time_limit, points)
        self._effort = Effort(points, limit_s, workers=limits.workers)
        self._models = models

    def __call__(self, job: Job) -> None:

        def take(curve: MemoryCurve) -> None:
            job.tell(lambda: self._state([_ended(plan, job) for plan in curve.points], curve))

        space = read_curve(self._arguments, self._profile)
        take(trace(self._profile, space, self._effort, on_point=take, stop=job.stop))

    def _state(self, plans: list[Plan], curve: MemoryCurve) -> dict[str, Any]:
        points = [
            {
                "plan": self._models.keep(plan),
                "cap_bytes": cap_of(plan),
                "peak_bytes": max(plan.claim.peak_bytes),
                "value_us": plan.claim.value_us,
                "bound_us": plan.claim.lower_bound_us,
            }
            for plan in plans
        ]
        families = [
            {"name": each.name, "peak_bytes": each.peak_bytes, "value_us": each.value_us}
            for each in curve.families
        ]
        return {"points": points, "families": families}
