"""The collector of cyclic garbage, in programs that make many objects."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Objects that are made between two searches of the youngest; Python's own number is 700 to 2,000.
_MADE = 50_000


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Look for cyclic garbage less often: a large schedule is 100,000 tuples, none of them in one.

    Python looks at all objects again and again as they become more.
    """
    before = gc.get_threshold()
    gc.set_threshold(_MADE, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
