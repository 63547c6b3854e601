"""Which layers B recomputes, and how much of each: the whole layer, or what a policy leaves out."""

from collections.abc import Collection, Iterable, Iterator, Mapping

# The policy under which F keeps a layer's input alone.
FULL = "full"


def runs(numbers: Iterable[int]) -> list[range]:
    """Return whole numbers as ranges without gaps, in rising order."""
    found: list[range] = []
    for number in sorted(numbers):
        if found and number == found[-1].stop:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


def _range(numbers: range) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


class Recomputation(Mapping[int, str]):
    """The policies of recomputed layers, by their places in the model; others keep everything.

    Iterating gives the places in forward order. Two are equal if all places and policies are.
    """

    __slots__ = ("_policies",)

    def __init__(self, layers: Collection[int] = ()) -> None:
        """Take policies by place; places alone are recomputed whole."""
        policies = layers if isinstance(layers, Mapping) else dict.fromkeys(layers, FULL)
        self._policies: dict[int, str] = dict(sorted(policies.items()))

    def __getitem__(self, place: int) -> str:
        """Return the policy of a recomputed layer."""
        return self._policies[place]

    def __iter__(self) -> Iterator[int]:
        """Iterate over the places."""
        return iter(self._policies)

    def __len__(self) -> int:
        """Return the number of recomputed layers."""
        return len(self._policies)

    def __hash__(self) -> int:
        """Hash places and policies."""
        return hash(tuple(self._policies.items()))

    def __repr__(self) -> str:
        """Show places and policies."""
        return f"Recomputation({self._policies})"

    @property
    def by_policy(self) -> dict[str, tuple[int, ...]]:
        """The places of each policy, that of the first layer first."""
        found: dict[str, tuple[int, ...]] = {}
        for place, policy in self._policies.items():
            found[policy] = (*found.get(policy, ()), place)
        return found

    @property
    def of_policies(self) -> dict[str, tuple[int, ...]]:
        """`by_policy` without the layers that are recomputed whole."""
        return {policy: at for policy, at in self.by_policy.items() if policy != FULL}

    @property
    def written(self) -> str:
        """The text that `--recompute` takes: `layers:0-3,7; ops:4`."""
        return "; ".join(
            f"{'layers' if policy == FULL else policy}:{','.join(map(_range, runs(at)))}"
            for policy, at in self.by_policy.items()
        )

    def within(self, places: Collection[int]) -> "Recomputation":
        """Return the same of some layers alone."""
        return Recomputation({at: policy for at, policy in self.items() if at in places})

    def without(self, place: int) -> "Recomputation":
        """Return the same with all of a layer kept."""
        return Recomputation({at: policy for at, policy in self.items() if at != place})


NOT_RECOMPUTED = Recomputation()
