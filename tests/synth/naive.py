"""An independent reading of what a schedule means, for tests: ranks as processes, memory by hand.

Written from docs and papers, not from the library: it shares only `Op` and the data classes.
"""

import random
from collections import defaultdict
from collections.abc import Sequence

from synth.costs.costs import Costs
from synth.op_kinds import OpKind
from synth.schedule.model import Placement, Schedule
from synth.schedule.ops import Op
from tests.synth import plain

F, B, W, BW, STEP, *_ = OpKind

Named = tuple[str, int, int]
Times = list[list[tuple[int, int]]]
Arrivals = dict[tuple[int, Named], int]


class Naive:
    """One schedule on its costs, evaluated step by step."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self.schedule, self.costs = schedule, costs
        self.last = costs.num_stages - 1
        self.programs = [self._with_steps(r) for r in range(schedule.num_ranks)]
        self._find_messages()

    def _with_steps(self, rank: int) -> list[Op]:
        program = list(self.schedule.programs[rank])
        ranks = self.schedule.placement.ranks[0]
        return program + [
            Op(STEP, s) for s, r in enumerate(ranks) if r == rank and Op(STEP, s) not in program
        ]

    def inputs(self, op: Op) -> list[Named]:
        """(name, stage, micro-batch) of the values an op needs; static ones left out."""
        kind, s, j, _ = op
        stage = self.costs.stages[s]
        if kind == STEP:
            return []
        if kind == F:
            return [("act", s - 1, j)] if s else []
        late = kind == W
        needs = [("saved_w" if late else "saved", s, j)]
        wanted = (W,) if late else (B, W)
        if s and stage.input_until in wanted:
            needs.append(("act", s - 1, j))
        if s < self.last and stage.output_until in wanted:
            needs.append(("act", s, j))
        if s < self.last and stage.gradient_until in wanted:
            needs.append(("grad", s, j))
        return needs

    def outputs(self, op: Op) -> list[Named]:
        """The values that an op leaves behind."""
        kind, s, j, _ = op
        made = []
        if kind == F:
            made = [("saved", s, j)] + ([("act", s, j)] if s < self.last else [])
        if kind in (B, BW) and s:
            made = [("grad", s - 1, j)]
        return [*made, ("saved_w", s, j)] if kind == B else made

    def duration_us(self, op: Op) -> int:
        """The time of an op."""
        return self.costs.stages[op.stage].duration_us[op.kind]

    def rise_bytes(self, op: Op) -> int:
        """The bytes above its start while it runs."""
        return self.costs.stages[op.stage].rise_bytes[op.kind]

    def size(self, value: Named) -> int:
        """Bytes of a value."""
        stage = self.costs.stages[value[1]]
        sizes = {
            "act": stage.output_bytes,
            "grad": stage.returned_bytes,
            "saved": stage.saved_bytes,
            "saved_w": stage.saved_w_bytes,
        }
        return sizes[value[0]]

    def _find_messages(self) -> None:
        """Every value that crosses ranks, link by link in the order in which it was made."""
        makers = {
            value: (rank, place)
            for rank, program in enumerate(self.programs)
            for place, op in enumerate(program)
            for value in self.outputs(op)
        }
        self.messages = defaultdict(list)
        self.post, self.wait = {}, {}
        for target, program in enumerate(self.programs):
            seen = set()
            for place, op in enumerate(program):
                for value in self.inputs(op):
                    if value in makers and makers[value][0] != target and value not in seen:
                        seen.add(value)
                        source, made = makers[value]
                        self.messages[source, target].append((made, value, place))
        ahead = self.schedule.buffering.receive_ahead
        behind = self.schedule.buffering.send_behind
        for (source, target), queue in self.messages.items():
            queue.sort(key=lambda m: (m[0], m[1][0] == "grad", m[1][1:]))
            for index, (made, value, _) in enumerate(queue):
                later_reads = [read for _, _, read in queue[index:]]
                self.post[target, value] = max(0, min(later_reads) - ahead)
                self.wait[source, value] = min(made + 1 + behind, len(self.programs[source]))

    def run(self) -> Times | None:
        """Start and end of every op, rank by rank; None if all ranks wait forever."""
        done: Times = [[] for _ in self.programs]
        arrived: Arrivals = {}
        sent = {link: 0 for link in self.messages}
        moved = True
        while moved:
            moved = any([self._advance_rank(rank, done, arrived) for rank in range(len(done))])
            moved |= any([self._advance_link(link, done, arrived, sent) for link in sent])
        complete = all(len(d) == len(p) for d, p in zip(done, self.programs, strict=True))
        return done if complete else None

    def _advance_rank(self, rank: int, done: Times, arrived: Arrivals) -> bool:
        """Run the rank's next op if all that it waits for has happened."""
        place = len(done[rank])
        if place == len(self.programs[rank]):
            return False
        op = self.programs[rank][place]
        ready = [done[rank][-1][1] if place else 0]
        made_here = {v for earlier in self.programs[rank][:place] for v in self.outputs(earlier)}
        for value in self.inputs(op):
            if value not in made_here:
                if (rank, value) not in arrived:
                    return False
                ready.append(arrived[rank, value])
        for (source, target), queue in self.messages.items():
            for _, value, _ in queue:
                if source == rank and self.wait[rank, value] == place:
                    if (target, value) not in arrived:
                        return False
                    ready.append(arrived[target, value])
        for part in self.parts(op):
            if part.kind == STEP:
                ready.append(self._reduced_us(rank, part.stage, done[rank]))
        start = max(ready)
        done[rank].append((start, start + self.duration_us(op)))
        return True

    def parts(self, op: Op) -> Sequence[Op]:
        """The op itself."""
        return (op,)

    def _reduced_us(self, rank: int, stage: int, done: list[tuple[int, int]]) -> int:
        """The end of a stage's reduction among the devices of its rank, 0 without one.

        Reductions begin in the order of the last W's, each behind its own and the one before; in a
        schedule that is not eager behind all of them.
        """
        program, lasts = self.programs[rank], dict[int, int]()
        is_step = [any(part.kind == STEP for part in self.parts(op)) for op in program]
        end = max(place for place in range(len(done)) if not is_step[place]) + 1
        begin = max((place + 1 for place in range(end) if is_step[place]), default=0)
        for place in range(begin, end):
            parts = self.parts(program[place])
            lasts |= {part.stage: place for part in parts if part.kind in (W, BW)}
        if not self.schedule.eager:
            lasts = dict.fromkeys(lasts, max(lasts.values()))
        free, ends = 0, {}
        for place, other in sorted((place, other) for other, place in lasts.items()):
            own = self.costs.stages[other]
            length = own.reduce_us
            if other == 0 and len(lasts) == 1:  # in buckets, beside the last backward
                length = max(round(length / 10), length - own.duration_us[BW])
            if own.reduce_us:
                free = ends[other] = max(free, done[place][1]) + length
        return ends.get(stage, 0)

    def _advance_link(
        self,
        link: tuple[int, int],
        done: Times,
        arrived: Arrivals,
        sent: dict[tuple[int, int], int],
    ) -> bool:
        """Move the link's next message if it was made and its receive is posted."""
        queue, (source, target) = self.messages[link], link
        if sent[link] == len(queue):
            return False
        made, value, _ = queue[sent[link]]
        post = self.post[target, value]
        if len(done[source]) <= made or len(done[target]) < post:
            return False
        free = arrived[target, queue[sent[link] - 1][1]] if sent[link] else 0
        posted = done[target][post - 1][1] if post else 0
        duration = self.costs.links.between(source, target).transfer_us(self.size(value))
        arrived[target, value] = max(done[source][made][1], posted, free) + duration
        sent[link] += 1
        return True

    def peak(self, rank: int) -> int:
        """The highest memory of a rank, from the lifetime of each value.

        Four moments per op: 0 receives posted, 1 sends waited for, 2 it runs, 3 it is over.
        """
        program = self.programs[rank]
        birth, death = {}, {}
        for place, op in enumerate(program):
            for value in self.outputs(op):
                birth[value] = 4 * place + 3
            for value in self.inputs(op):
                death[value] = 4 * place + 2
                if (rank, value) in self.post:
                    birth[value] = 4 * self.post[rank, value]
        for (source, value), place in self.wait.items():
            if source == rank:
                death[value] = max(death.get(value, 0), 4 * place)
        held = self.schedule.placement.ranks[0]
        static = sum(self.costs.stages[s].static_bytes for s, r in enumerate(held) if r == rank)
        highest = 0
        for moment in range(4 * len(program) + 1):
            alive = [v for v in birth if birth[v] <= moment <= death.get(v, -1)]
            level = sum(map(self.size, alive))
            if moment % 4 == 2:
                level += self.rise_bytes(program[moment // 4])
            highest = max(highest, level)
        return static + highest


def random_schedule(rng: random.Random) -> Schedule:
    """A random schedule that `Naive` supports: one copy of the stages, one or two on each rank."""
    ranks = tuple(range(rng.randint(1, 4)))
    second = rng.choice(((), ranks, ranks[::-1]))
    return plain.random_schedule(rng, where=Placement(((*ranks, *second),)), keeping=True)
