"""Estimated times of layers beside printed ones (`python -m benchmarks.estimates_layers`)."""

from statistics import median

import pytest

from benchmarks.estimates_layers import LayerTime, layer_times


@pytest.fixture(scope="module")
def times() -> list[LayerTime]:
    return layer_times()


def of(times: list[LayerTime], source: str) -> list[LayerTime]:
    return [each for each in times if each.source.startswith(source)]


def test_a_layer_of_22b_is_as_the_selective_recompute_paper_prints(
    times: list[LayerTime],
) -> None:
    found = of(times, "arXiv 2205.05198")
    assert len(found) == 10
    assert max(abs(each.error) for each in found) < 0.10
    ms = {(each.case, each.part): each.estimated_ms for each in found}
    # The paper's overheads of the backward: 39 % of the layer for all of it, 7 % for attention.
    whole = sum(ms["no recomputation", part] for part in ("forward", "backward"))
    again = ms["recomputed layer", "backward"] - ms["no recomputation", "backward"]
    selective = ms["selective", "backward"] - ms["no recomputation", "backward"]
    assert again / whole == pytest.approx(0.39, abs=0.03)
    assert selective / whole == pytest.approx(0.07, abs=0.02)


def test_stages_are_as_the_zero_bubble_paper_prints(times: list[LayerTime]) -> None:
    found = of(times, "arXiv 2401.10241")
    assert len(found) == 12
    assert max(abs(each.error) for each in found) < 0.15
    for case in dict.fromkeys(each.case for each in found):
        whole = [each for each in found if each.case == case]
        printed = sum(each.printed_ms for each in whole)
        assert sum(each.estimated_ms for each in whole) == pytest.approx(printed, rel=0.05)


def test_the_compute_of_deepseek_v3s_experts_is_near_its_trace(times: list[LayerTime]) -> None:
    found = {(each.case, each.part): each.error for each in of(times, "DeepSeek")}
    assert abs(found["experts", "F"]) < 0.1
    assert median(abs(error) for error in found.values()) < 0.35
