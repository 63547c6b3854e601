"""Time to open the page of a large schedule, and frames per second while it zooms.

    python -m benchmarks.html_page [--ranks 64] [--micro-batches 512] [--html FILE]

The schedule is that of `schedule_scale.py`: F, B and W split, two stages per rank in a V. The page
is opened from disk in headless Chromium, driven by Playwright, without a GPU. `open` is from the
start of loading to the first picture. A frame is from one zoom step to the next one, with drawing
and compositing; steps go in and out between the whole schedule and a hundredth of it. The best and
the worst of the windows listed decide.
"""

import argparse
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.schedule_scale import stage_costs, v_schedule
from synth.report.chart.chart import Chart
from synth.report.chart.timed import TimedSchedule
from synth.report.html.page import page
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import verify

NUM_STEPS = 160

# Zooms step by step; returns the milliseconds of each frame.
ZOOM = """async (numSteps) => {
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    const times = [];
    await frame();
    let before = performance.now();
    for (let i = 0; i < numSteps; i++) {
        viewer.zoom(i % 40 < 20 ? 1 / 1.26 : 1.26, 300 + 5 * i);
        await frame();
        times.push(performance.now() - before);
        before = performance.now();
    }
    return times;
}"""


def write_page(path: Path, num_ranks: int, num_micro_batches: int) -> None:
    """Write the page, and print the time and bytes that it takes."""
    schedule = v_schedule(num_ranks, num_micro_batches)
    lowered, timeline = verify(schedule, stage_costs(schedule.placement.num_stages))
    stages = tuple(f"layer {stage}" for stage in range(schedule.placement.num_stages))
    caps = tuple(peak + peak // 10 for peak in peak_bytes(lowered))
    began = time.perf_counter()
    chart = Chart("v", "", TimedSchedule.of_timeline(timeline), stages, caps)
    text = page("a large schedule", [chart])
    path.write_text(text, encoding="utf-8")
    num_ops = sum(map(len, schedule.programs))
    print(
        f"{num_ranks} ranks, {num_micro_batches} micro-batches: {num_ops} ops; page of "
        f"{len(text) / 1e6:.2f} MB written in {time.perf_counter() - began:.1f} s"
    )


def measure(browser: Any, path: Path, width: int, height: int, ratio: float) -> str:
    """Open the page in a window, zoom, and return a row of the answer."""
    window = browser.new_page(
        viewport={"width": width, "height": height}, device_scale_factor=ratio
    )
    window.goto(path.resolve().as_uri())
    window.wait_for_selector("html[data-ready-ms]", state="attached")
    ready_ms = int(window.get_attribute("html", "data-ready-ms"))
    cells = [f"{width} × {height} × {ratio:g}", f"{ready_ms:>8}"]
    for smaller in (0, 9):
        window.evaluate(f"viewer.resizeRows(-{smaller})")
        frames_ms = sorted(window.evaluate(ZOOM, NUM_STEPS))
        mean_ms = sum(frames_ms) / len(frames_ms)
        slow_ms = frames_ms[int(0.95 * len(frames_ms))]
        cells.append(f"{1000 / mean_ms:>8.0f} {1000 / slow_ms:>6.0f}")
    window.close()
    return "  ".join(cells)


def main() -> None:
    """Print one row per window."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--micro-batches", type=int, default=512)
    parser.add_argument("--html", type=Path, help="keep the page in this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as running:
        path = arguments.html or Path(folder) / "page.html"
        write_page(path, arguments.ranks, arguments.micro_batches)
        browser = running.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        print(f"Chromium {browser.version}, {platform.machine()}, {os.cpu_count()} cores, no GPU")
        print(
            "window               open ms   frames/s: mean, slow 5 %; all ranks in sight: the same"
        )
        for width, height, ratio in ((1500, 900, 1), (1920, 1080, 1), (1500, 900, 2)):
            print(measure(browser, path, width, height, ratio), flush=True)
        browser.close()


if __name__ == "__main__":
    main()
