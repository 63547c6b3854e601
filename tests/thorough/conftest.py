"""Checks with random examples that take as long as they are given: only with `-m thorough`."""

from collections.abc import Iterator

import pytest

from tests.cli.conftest import plan_file, run_plan, synth, text  # noqa: F401 - fixtures
from tests.thorough.examples import Examples


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave these checks out unless they are asked for."""
    if "thorough" in config.getoption("markexpr"):
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def examples(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> Iterator[Examples]:
    """The random examples of a check: its marker's share, among the checks that are run."""
    every = sum(_share(item) for item in request.session.items)
    made = Examples(_share(request.node) / every)
    with capsys.disabled():
        print(f"\n{request.node.name}: SYNTH_SEED={made.first_seed}, {made.seconds:.0f} s")
    yield made
    with capsys.disabled():
        print(f" {made.count} examples", end=" ")


def _share(item: pytest.Item) -> float:
    marker = item.get_closest_marker("thorough")
    return marker.kwargs["share"] if marker else 0.0
