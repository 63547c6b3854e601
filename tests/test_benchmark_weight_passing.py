"""The comparison of passing activations and weights, against its closed forms."""

import re
from pathlib import Path

import pytest

from benchmarks import tables, weight_passing
from benchmarks.weight_passing import Row, hidden_from_tokens, picture, table
from benchmarks.weight_passing_model import MEMORY_BYTES, Model, costs_of, network, simulate
from benchmarks.weight_passing_papers import TABLES, Printed, rows_of
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links

FREE = Links()
MODEL = Model(hidden=1024, num_layers=8, sequence=2048, tokens=2048)


def compute_bound(model: Model, num_ranks: int) -> float:
    """Tokens per second and device if nothing but compute takes time: F, and three F's backward."""
    stages = costs_of(model, num_ranks, FREE).stages
    us = 4 * sum(stage.duration_us[OpKind.F] for stage in stages)
    return model.tokens / us * 1e6


def test_over_free_links_fsdp_has_no_bubble_and_the_pipelines_have_theirs() -> None:
    ranks, rounds = 4, 3
    whole = compute_bound(MODEL, ranks)
    assert simulate("zero3:1", MODEL, ranks, rounds, FREE).tokens_per_s == pytest.approx(whole)
    bubble = (ranks - 1) / (rounds * ranks + ranks - 1)
    one_f_one_b = simulate("1f1b", MODEL, ranks, rounds, FREE).tokens_per_s
    assert one_f_one_b == pytest.approx((1 - bubble) * whole)


def test_without_recomputation_a_third_of_the_backward_and_all_saved_activations_remain() -> None:
    whole = MODEL._replace(recomputes=False)
    repeated, once = (simulate("zero3:1", model, 2, 1, FREE) for model in (MODEL, whole))
    assert once.tokens_per_s == pytest.approx(repeated.tokens_per_s * 4 / 3)
    # 34 bytes for each token, hidden unit and layer, where only inputs and one layer remain else.
    unit = MODEL.tokens * MODEL.hidden
    held = 34 * unit * MODEL.num_layers
    assert once.peak_bytes - repeated.peak_bytes == pytest.approx(
        held - (2 * MODEL.num_layers + 34) * unit, rel=0.1
    )


def test_out_of_memory_is_said_of_printed_and_of_simulated_figures() -> None:
    printed = Printed(4096, 4096, 16, 16384, (1662.7, None, None, 1110.5, 2023.1))
    rows = [row._asdict() for row in rows_of("table-2", printed, 16, 1, FREE)]
    speeds, peaks = (TABLES[name]({"rows": rows}) for name in ("table-2", "table-2-peaks"))
    assert re.search(
        r"\| 4096 \| 4096 \| OOM / \d\.\d\d \| OOM / OOM \| 0\.67 / \d\.\d\d \|", speeds
    )
    # The peak of the simulation is shown where it is more than the memory, too.
    assert re.search(r"\| 4096 \| 4096 \| (OOM / \d+\.\d \|? ?){5}", peaks)


def test_the_fastest_system_is_one_that_fits() -> None:
    fits, exceeds = round(MEMORY_BYTES), round(MEMORY_BYTES) + 1
    rows = [
        Row("NVLink", 1024, "1f1b", 1000.0, fits, 0),
        Row("NVLink", 1024, "weipipe", 1200.4, fits, 0),
        Row("NVLink", 1024, "zero3:1", 1500.0, exceeds, 0),
        Row("NVLink", 2048, "zero3:1", 1500.0, exceeds, 0),
    ]
    lines = table({"rows": [row._asdict() for row in rows]}).splitlines()
    assert lines[2:] == ["| 1k | `weipipe`, 1,200 |", "| 2k | none fits |"]


def test_a_sweep_is_saved_and_shown_on_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Row("NVLink", 1024, "1f1b", 1000.0, 1, 2)]
    monkeypatch.setattr(weight_passing, "sweep", lambda *_: iter(rows))
    assert weight_passing.main(["--json", str(tmp_path / "saved.json")]) == 0
    page = tables.filled("<!-- results: saved -->\n<!-- /results -->\n", tmp_path)
    assert "H = 4096, 32 layers, 16 devices of 80 GB" in page
    assert "| 1k | `1f1b`, 1,000 |" in page


@pytest.mark.parametrize("system", ["weipipe", "zero3:1"])
def test_transfers_hide_from_the_tokens_of_the_closed_form_on(system: str) -> None:
    bandwidth, ranks = 1.25e9, 8
    links = Links(default=Link(bandwidth_bytes_per_s=bandwidth))
    least = hidden_from_tokens(bandwidth, ranks)[system]

    def exposed_s(tokens: float) -> float:
        """The time that a further micro-batch on each rank takes beyond its compute."""
        model = Model(hidden=256, num_layers=8, sequence=0, tokens=round(tokens))
        few, many = (
            n * model.tokens / simulate(system, model, ranks, n, links).tokens_per_s for n in (4, 8)
        )
        return (many - few) / 4 - model.tokens / compute_bound(model, ranks)

    # From there on only the order of ops exposes transfers, however long the ops are.
    always_s = exposed_s(4 * least)
    assert exposed_s(1.02 * least) == pytest.approx(always_s, rel=0.1)
    assert exposed_s(0.9 * least) > 1.2 * always_s


@pytest.mark.parametrize("system", ["weipipe", "weipipe:wzb2", "zero3:1"])
def test_where_links_limit_weights_cost_their_bytes(system: str) -> None:
    # At 10 MB/s transfers take a hundred times as long as compute.
    ranks, rounds = 4, 4
    slow = Links(default=Link(bandwidth_bytes_per_s=1e7))
    fast = simulate(system, MODEL, ranks, rounds, FREE)
    found = simulate(system, MODEL, ranks, rounds, slow)
    assert found.sent_bytes == fast.sent_bytes
    # Every link carries at least the mean of all of them.
    least_s = found.sent_bytes / ranks / 1e7
    tokens = MODEL.tokens * ranks * rounds
    assert found.tokens_per_s * ranks <= tokens / least_s * 1.01
    assert found.tokens_per_s < fast.tokens_per_s / 50


def test_the_picture_has_a_panel_for_each_network_and_a_curve_for_each_system() -> None:
    systems = ("1f1b", "zb-h1", "weipipe", "weipipe:wzb2", "zero3:1")
    names = ("10 GbE", "200 Gb/s", "NVLink")
    rows = [
        Row(name, tokens, system, *simulate(system, MODEL, 2, 2, network(name))[:3])
        for name in names
        for tokens in (1024, 262144)
        for system in systems
    ]
    limits = {"weipipe": 4096.0, "zero3:1": 512.0}
    svg = picture(rows, dict.fromkeys(names, limits))
    assert [svg.count(f'"curve{place}"') for place in range(5)] == [4] * 5
    # The second limit is left of all panels.
    assert [svg.count(f'"limit{place}"') for place in range(5)] == [0, 0, 3, 0, 0]
