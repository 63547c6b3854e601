"""Measures how long the page of `synth ui` takes to draw, and to open a large pipeline.

    python -m benchmarks.ui_page

The first table is of the server alone: two schedules of 8 ranks and 32 micro-batches, drawn anew
under one memory limit after the other. The second is of a headless Chromium that opens a page of 64
ranks and 512 micro-batches, until both schedules are drawn; it needs the extra `browser`.
"""

import json
import shutil
import statistics
import threading
import time
from pathlib import Path

from synth.cli.answer.explain import explanation_text
from synth.system.messages import silenced
from synth.ui.drawing import Drawings
from synth.ui.limits import LOCAL
from synth.ui.models import Models
from synth.ui.serve import Address, Page, seldom_collected
from synth.ui.setting import PipelineSetting, ShownSchedule, Sliders

SLIDERS = {
    "layers": 64,
    "forward_ms": 10,
    "backward_ms": 10,
    "weight_ms": 10,
    "saved_mb": 100,
    "output_mb": 10,
    "parameter_mb": 100,
}
# Of 24 or 32 stages, on a model of as many equal layers.
DEEP_PAIRS = (
    ("interleaved:4", "breadth-first:4"),
    ("hanayo:2", "gis:4,uniform"),
    ("gis:3", "gis:4"),
)
PAIRS = (
    ("1f1b", "zb-h1"),
    ("interleaved:3", "zb-1p"),
    ("v-min", "v-half"),
    ("1f1b", "zb-v"),
    ("zb-v", "v-half"),
    ("zb-v", "zb-v-greedy"),
    ("bitpipe:1,early", "bitpipe:1"),
    ("1f1b", "zb-v-limit"),
)
REPEATED = 9
LARGE = "#ranks=64&micro_batches=512&lower=zb-h1&tab=none&sliders=64,{},10,10,100,10,400"


def draw(
    drawings: Drawings, names: tuple[str, str], limit: str, sliders: Sliders | None = None
) -> tuple[float, float]:
    """Draw two schedules, and return the seconds by the clock and of the processor."""
    setting = PipelineSetting(ranks=8, micro_batches=32, mem_limit=limit, sliders=sliders)
    began_s, worked_s = time.perf_counter(), time.process_time()
    for name in names:
        json.dumps(drawings.of(setting, ShownSchedule(schedule=name)).data())
    return time.perf_counter() - began_s, time.process_time() - worked_s


def drawing() -> None:
    """Print the times of the server."""
    print("two schedules, 8 × 32          clock ms  processor ms   (medians)")
    deep = Sliders.model_validate(SLIDERS)
    for names in (*PAIRS, *DEEP_PAIRS):
        drawings = Drawings(Models(Path.cwd(), LOCAL), LOCAL)
        sliders = deep if names in DEEP_PAIRS else None
        draw(drawings, names, "none", sliders)
        times = [draw(drawings, names, f"{60 + more}GB", sliders) for more in range(REPEATED)]
        clock, work = (1000 * statistics.median(each) for each in zip(*times, strict=True))
        print(f"{' and '.join(names):<29}  {clock:8.0f}  {work:12.0f}")


def opening() -> None:
    """Print how long a browser takes to open a large pipeline that was not drawn before."""
    from playwright.sync_api import sync_playwright

    page, stop = Page(Path.cwd(), LOCAL, explanation_text, Address()), threading.Event()
    thread = threading.Thread(target=page.run, args=(stop,))
    thread.start()
    try:
        with sync_playwright() as running:
            browser = running.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            for more in range(3):
                shown = browser.new_page()
                began_s = time.perf_counter()
                shown.goto(page.url + LARGE.format(10 + more))
                shown.wait_for_selector("html[data-drawn]", state="attached", timeout=600_000)
                print(f"64 × 512 opens in {time.perf_counter() - began_s:.2f} s")
                shown.close()
            browser.close()
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    with silenced(), seldom_collected():  # as the server does
        drawing()
        opening()
