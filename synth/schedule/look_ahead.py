r"""Bounded look-ahead: what a rank may run while the input of its plan's next op is late.

A program is run in its order, with one exception. While the next op (the *head*) waits for a
receive, ops at most N places after it may run early:

    program     B0.3      RECV  F0.7  SEND  W0.2
                ^ waits         ^ early, then its SEND

- An early op never waits: its inputs have arrived or were made on this rank.
- Receives are posted and sends started in the order of the plan on each link, early or not.
- Ops of the same kind and stage keep their order, so gradients add up in the order of the plan.
- Steps, reductions, offloads and a stage's last backward stay at their places. Nothing after one
  of them runs before it.
- After an early instruction the rest of the program, run in order, still fits under the cap.

Memory: by the last rule the level never exceeds the cap, whatever comes late.

No deadlock: let every rank be blocked, and let h be the first of their heads in a topological order
of the lowered graph. h waits for a transfer. Its send, its receive and both ends of all transfers
before it on its link come before h in that order, so they are not after the head of their rank:
they have started, in the order of the link. So all these transfers end, and h is not blocked. The
argument needs only that all instructions before a head have run, that each link keeps its order,
that nothing early waits, and that a blocked rank continues when a receive of its head arrives.

The last condition is why a choice itself notes the receives that it missed (`awaited`). Looking at
the receives a second time, to find those to wait for, would leave out one that arrived in between,
although no choice has seen it.
"""

from collections import ChainMap, Counter, defaultdict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field

from synth.costs.costs import HOST
from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import Action, Instruction, Lowered, Transfer
from synth.schedule.ops import Value
from synth.schedule.rank_memory import memory_usage, static_bytes

_MOVABLE = (OpKind.F, OpKind.R, OpKind.B, OpKind.W, OpKind.BW)
_BACKWARD = (OpKind.B, OpKind.W, OpKind.BW)
_LINK_ACTIONS = (Action.RECV, Action.SEND)


@dataclass
class _Facts:
    """One instruction, as far as look-ahead needs to know it."""

    instruction: Instruction
    is_fence: bool
    made_bytes: int
    rise_bytes: int
    touched: list[Value]
    arrivals: list[int] = field(default_factory=list)
    """The RECVs whose values the op reads."""
    after: list[int] = field(default_factory=list)
    """The instructions of the rank that must have run before, besides `arrivals`."""


class LookAhead:
    """Chooses the next instruction of one rank; it knows the program and no clock."""

    def __init__(
        self, lowered: Lowered, rank: int, most_ops: int, cap_bytes: int | None = None
    ) -> None:
        """Prepare a rank.

        Args:
            lowered: a verified schedule on measured costs.
            most_ops: N, the number of ops after the head among which one may be chosen.
            cap_bytes: the memory limit of the rank; None: the peak of its plan.

        Raises:
            SynthError: N is negative, weights are passed or have versions, F and BW run at once, or
                the plan itself exceeds the cap.
        """
        if most_ops < 0:
            raise SynthError(f"look-ahead of {most_ops} ops; give 0 (the plan's order) or more")
        if lowered.schedule.overlapped:
            raise SynthError(
                "look-ahead runs ops one by one, and this schedule runs F and BW at once; run it "
                "in its order"
            )
        if lowered.visits is not None or lowered.versions is not None:
            raise SynthError(
                "look-ahead needs weights that stay and change only at the end of an iteration; "
                "run this schedule in its order"
            )
        peak = memory_usage(lowered, rank).peak_bytes
        self.cap_bytes = peak if cap_bytes is None else cap_bytes
        if peak > self.cap_bytes:
            raise SynthError(
                f"the plan needs {peak} bytes on rank {rank}, the limit is {self.cap_bytes}"
            )
        self._most_ops = most_ops
        self._static_bytes = static_bytes(lowered, rank)
        self._facts = _facts(lowered, rank)
        self._links = _link_order(self._facts)
        self._sends = _sends(self._facts)
        self._untouched = Counter(v for facts in self._facts for v in facts.touched)
        effects, taken = lowered.effects, (one.instruction for one in self._facts)
        received = {one.moved.value for one in taken if one.action == Action.RECV}
        self._bytes_of = {
            value: effects.bytes_of(value) if value in received else effects.own_bytes_of(value)
            for value in self._untouched
        }
        self.begin()

    def begin(self, left_out: Sequence[int] = ()) -> None:
        """Begin an iteration; the instructions left out count as done."""
        self._done = [False] * len(self._facts)
        self._uses = Counter(self._untouched)
        self.level_bytes = self._static_bytes
        """The memory level now."""
        self.highest_bytes = self.level_bytes
        """The highest level so far."""
        self.head = 0
        """The first instruction that has not run; the program's length at its end."""
        self._furthest = -1
        self.num_early = 0
        """The number of ops that ran early in this iteration."""
        self.awaited: set[int] = set()
        """The open receives that the last `choose` found missing, by the places of their RECVs.

        Until one of them arrives or an instruction runs, the choice stays the same.
        """
        for index in left_out:
            self._done[index] = True
        self._advance()

    def choose(self, has_arrived: Callable[[int], bool], end: int | None = None) -> int | None:
        """Return the instruction to run now; None: wait until a receive of `awaited` arrives.

        Args:
            has_arrived: True if the receive that was posted at this place has arrived. Its answer
                may change at any time.
            end: instructions from this place on do not run early; None: any may.
        """
        self.awaited = set()

        def note_missing(recv: int) -> bool:
            found = has_arrived(recv)
            if not found:
                self.awaited.add(recv)
            return found

        if all(map(note_missing, self._facts[self.head].arrivals)):
            return self.head
        return next(self._early(note_missing, end), None)

    def run(self, index: int) -> list[Value]:
        """Note that an instruction runs; return the values that nobody on this rank needs after."""
        facts = self._facts[index]
        early = index != self.head
        self.num_early += early and facts.instruction.action == Action.COMPUTE
        self._done[index] = True
        self._furthest = max(self._furthest, index)
        self.level_bytes, highest = self._step(facts, self.level_bytes)
        self.highest_bytes = max(self.highest_bytes, highest)
        freed = self._touch(self._uses, facts)
        self._advance()
        return freed

    def sends_behind(self, index: int, end: int | None = None) -> Iterator[int]:
        """The sends of an early op's values that may start now, by the order of their links.

        Run each before the next one is asked for. `end` is that of `choose`.
        """
        for send in self._sends[index]:
            is_within = end is None or send < end
            if is_within and not self._done[send] and self._is_first_of_link(send):
                yield send

    def _advance(self) -> None:
        while self.head < len(self._done) and self._done[self.head]:
            self.head += 1

    def _early(self, has_arrived: Callable[[int], bool], end: int | None) -> Iterator[int]:
        """Ops that may run now, then receives that may be posted."""
        window = self._window(end)
        for index in window:
            if self._facts[index].instruction.action == Action.COMPUTE and self._is_ready(
                index, has_arrived
            ):
                yield index
        for index in window:
            is_receive = self._facts[index].instruction.action == Action.RECV
            if is_receive and self._is_first_of_link(index) and self._fits(index):
                yield index

    def _window(self, end: int | None) -> list[int]:
        """The instructions after the head up to the N-th op or a fence, that have not run."""
        found: list[int] = []
        if self._facts[self.head].is_fence:
            return found
        num_ops = 0
        last = len(self._facts) if end is None else end
        for index in range(self.head + 1, last):
            facts = self._facts[index]
            if facts.is_fence:
                break
            if facts.instruction.action == Action.COMPUTE:
                num_ops += 1
                if num_ops > self._most_ops:
                    break
            if not self._done[index]:
                found.append(index)
        return found

    def _is_ready(self, index: int, has_arrived: Callable[[int], bool]) -> bool:
        facts = self._facts[index]
        return (
            all(self._done[before] for before in facts.after)
            and all(self._done[recv] and has_arrived(recv) for recv in facts.arrivals)
            and self._fits(index)
        )

    def _is_first_of_link(self, index: int) -> bool:
        """True if all earlier instructions of the same end of its link have run."""
        key = _link_of(self._facts[index].instruction)
        return all(self._done[other] for other in self._links[key] if other < index)

    def _fits(self, index: int) -> bool:
        """True if the level stays under the cap with this instruction now and the rest in order.

        Behind the furthest instruction that has run, everything is as in the plan.
        """
        uses = ChainMap({}, self._uses)  # its writes stay out of `self._uses`
        level = self.level_bytes
        last = max(self._furthest, index)
        rest = (i for i in range(self.head, last + 1) if i != index and not self._done[i])
        for each in (index, *rest):
            facts = self._facts[each]
            level, highest = self._step(facts, level, uses)
            if highest > self.cap_bytes:
                return False
            self._touch(uses, facts)
        return True

    def _step(
        self, facts: _Facts, level: int, uses: MutableMapping[Value, int] | None = None
    ) -> tuple[int, int]:
        """The level after an instruction, and the highest during it."""
        left = self._uses if uses is None else uses
        after = level + facts.made_bytes
        after -= sum(self._bytes_of[value] for value in facts.touched if left[value] == 1)
        return after, max(level + facts.rise_bytes, after)

    def _touch(self, uses: MutableMapping[Value, int], facts: _Facts) -> list[Value]:
        freed = []
        for value in facts.touched:
            uses[value] -= 1
            if uses[value] == 0:
                freed.append(value)
        return freed


def _facts(lowered: Lowered, rank: int) -> list[_Facts]:
    effects, program = lowered.effects, lowered.programs[rank]
    last_backward = {
        i.compute.stage: place
        for place, i in enumerate(program)
        if i.action == Action.COMPUTE and i.compute.kind in _BACKWARD
    }
    received: dict[Value, int] = {}
    from_host: set[Value] = set()
    made: dict[Value, int] = {}
    last_of_kind: dict[tuple[OpKind, int], int] = {}
    found = []
    for place, instruction in enumerate(program):
        facts = _Facts(instruction, _is_fence(instruction), 0, 0, [])
        if instruction.action == Action.COMPUTE:
            op = instruction.compute
            facts.is_fence |= last_backward.get(op.stage) == place
            makes, reads = effects.makes(op), effects.reads(op)
            facts.made_bytes = sum(map(effects.own_bytes_of, makes))
            facts.rise_bytes = effects.rise_bytes(op)
            facts.touched = list(dict.fromkeys((*makes, *reads)))
            facts.arrivals = [received[value] for value in reads if value in received]
            facts.is_fence |= any(value in from_host for value in reads)
            facts.after = [made[value] for value in reads if value in made]
            for kind in (OpKind.B, OpKind.W) if op.kind == OpKind.BW else (op.kind,):
                if (before := last_of_kind.get((kind, op.stage))) is not None:
                    facts.after.append(before)
                last_of_kind[kind, op.stage] = place
            made |= dict.fromkeys(makes, place)
        elif instruction.action == Action.RECV:
            facts.made_bytes = instruction.moved.num_bytes
            facts.touched = [instruction.moved.value]
            if instruction.moved.source == HOST:
                from_host.add(instruction.moved.value)
            else:
                received[instruction.moved.value] = place
        elif instruction.held is not None:
            facts.touched = [instruction.held]
        found.append(facts)
    return found


def _is_fence(instruction: Instruction) -> bool:
    """True if nothing may pass the instruction: steps, reductions, and moves with their links."""
    if instruction.action == Action.COMPUTE:
        return instruction.compute.kind not in _MOVABLE
    if instruction.transfer is not None:
        return HOST in (instruction.moved.source, instruction.moved.target)
    return True


def _link_of(instruction: Instruction) -> tuple[Action, int, int]:
    transfer: Transfer = instruction.moved
    return instruction.action, transfer.source, transfer.target


def _link_order(facts: Sequence[_Facts]) -> dict[tuple[Action, int, int], list[int]]:
    """The RECVs and the SENDs of each link, in program order."""
    found: defaultdict[tuple[Action, int, int], list[int]] = defaultdict(list)
    for place, each in enumerate(facts):
        if each.instruction.action in _LINK_ACTIONS:
            found[_link_of(each.instruction)].append(place)
    return found


def _sends(facts: Sequence[_Facts]) -> defaultdict[int, list[int]]:
    """The SENDs of the values that each op makes, by the op's place."""
    maker: dict[Value, int] = {}
    found: defaultdict[int, list[int]] = defaultdict(list)
    for place, each in enumerate(facts):
        if each.instruction.action == Action.COMPUTE:
            maker |= {value: place for value in each.touched if value not in maker}
        elif each.instruction.action == Action.SEND and each.touched[0] in maker:
            found[maker[each.touched[0]]].append(place)
    return found
