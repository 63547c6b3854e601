"""Repeating orders of 2BW on a rank with two stages, each tried out by replaying its program.

The two other stages are on a second rank, take no time there, and run when their inputs arrive.
Links serve transfers one at a time. It shares no code with the search.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product

NUM = 60
# Micro-batches of the steady state that are counted.
FIRST, LAST = 24, 48

# An op of the first rank: (kind, stage). A program: (kind, stage, micro-batch).
Op = tuple[str, int]
Program = list[tuple[str, int, int]]


@dataclass(frozen=True)
class TwoStages:
    """Times of F, B and W of the first rank's stages, and of a transfer; bytes that are kept."""

    us: dict[int, dict[str, int]]
    link_us: int
    saved: int
    saved_w: int
    parameters: int
    every: int

    def tried(self) -> list[tuple[int, float]]:
        """The highest bytes above the static ones, and the time of a micro-batch, of all orders."""
        found = {}
        for program in self._programs():
            peak = self._peak(program)
            if peak is not None:
                found[tuple(program)] = peak
        timed = ((peak, self._steady_us(list(program))) for program, peak in found.items())
        return [(peak, us) for peak, us in timed if us is not None]

    # Orders

    def _programs(self) -> Iterator[Program]:
        """Every order of an interval, with W up to an update late."""
        low, high = self.us
        f, b, w = ((kind, low) for kind in "FBW")
        f2, b2, w2 = ((kind, high) for kind in "FBW")
        lags = range(self.every + 2)
        for rest in permutations((f2, b2, b, w, w2)):
            place = {op: i for i, op in enumerate((f, *rest))}
            for lag_f2, lag_b2, lag_b, lag_w, lag_w2 in product(lags, repeat=5):
                lag = {f: 0, f2: lag_f2, b2: lag_b2, b: lag_b, w: lag_w, w2: lag_w2}
                pairs = ((f, f2), (f2, b2), (b2, b), (b, w), (b2, w2))
                if all(lag[y] >= lag[x] + (place[y] < place[x]) for x, y in pairs):
                    yield self._unrolled((f, *rest), lag)

    def _unrolled(self, interval: tuple[Op, ...], lag: dict[Op, int]) -> Program:
        program: Program = []
        for turn in range(NUM + max(lag.values())):
            for kind, stage in interval:
                j = turn - lag[kind, stage]
                if 0 <= j < NUM:
                    program.append((kind, stage, j))
        return program

    # Memory

    def _peak(self, program: Program) -> int | None:
        """The most bytes; None: a version that is read is not there."""
        done = {(kind, stage): 0 for stage in self.us for kind in "FBW"}
        level = peak = 0
        for kind, stage, j in program:
            batch, newest = j // self.every, done["W", stage] // self.every
            if kind == "F" and newest < batch - 1:
                return None
            stashed = self._stashed(done)
            change = {"F": self.saved, "B": self.saved_w - self.saved, "W": -self.saved_w}[kind]
            peak = max(peak, level + max(0, change) + stashed)
            level += change
            done[kind, stage] += 1
            peak = max(peak, level + self._stashed(done))
        return peak

    def _stashed(self, done: dict[Op, int]) -> int:
        """The bytes of versions that were replaced and that some B still reads."""
        count = 0
        for stage in self.us:
            newest, j = done["W", stage] // self.every, done["B", stage]
            read = {max(0, i // self.every - 1) for i in range(j, min(NUM, j + 3 * self.every))}
            # Of those only F's that may have run hold it, but a later F reads it as well.
            count += sum(version < newest for version in read)
        return count * self.parameters

    # Time

    def _steady_us(self, program: Program) -> float | None:
        """The time of a micro-batch in the middle; None: the ranks wait for each other."""
        ended: dict[tuple[str, int, int], int] = {}
        arrived: dict[tuple[str, int, int], int] = {}
        there = back = free = 0
        for kind, stage, j in program:
            start = free
            needed = self._input(kind, stage, j)
            if needed is not None and needed[1] in self.us:
                start = max(start, ended[needed])
            elif needed is not None:
                if needed not in arrived:
                    return None
                start = max(start, arrived[needed])
            free = ended[kind, stage, j] = start + self.us[stage][kind]
            away = self._stays(self._next((kind, stage, j)))
            if away:
                there = at = max(free, there) + self.link_us
            if away and self._next(away[-1]) is not None:
                back = arrived[away[-1]] = max(at, back) + self.link_us
        return (ended["B", 0, LAST] - ended["B", 0, FIRST]) / (LAST - FIRST)

    def _input(self, kind: str, stage: int, j: int) -> tuple[str, int, int] | None:
        if kind == "F":
            return ("F", stage - 1, j) if stage else None
        if kind == "B":
            return ("B", stage + 1, j) if stage < 3 else ("F", 3, j)
        return "B", stage, j

    def _stays(self, op: tuple[str, int, int] | None) -> list[tuple[str, int, int]]:
        """The ops from this one on that are on the other rank, until the first that is not."""
        found = []
        while op is not None and op[1] not in self.us:
            found.append(op)
            op = self._next(op)
        return found

    def _next(self, op: tuple[str, int, int]) -> tuple[str, int, int] | None:
        """The op that reads the value of an F or a B."""
        kind, stage, j = op
        if kind == "W":
            return None
        if kind == "F":
            return ("F", stage + 1, j) if stage < 3 else ("B", 3, j)
        return ("B", stage - 1, j) if stage else None
