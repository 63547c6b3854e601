"""Command lines of `synth solve` whose plans are recorded: some of each regime.

All are deterministic with seed 0 and two workers. A limit is counted effort, not time.
"""

_8, _8_LARGE, _16, _OWN = "zb-1.5b-p8-m24", "zb-6.2b-p8-m24", "zb-14.6b-p16-m48", "gpt-bytes-cpu"

CASES: dict[str, str] = {
    # one stage per rank: without a limit, with that of 1F1B, and with less than 1F1B needs
    "8x24, no limit": f"{_8} -r 8 -m 24 --time-limit 4s",
    "8x24, 1F1B's memory": f"{_8_LARGE} -r 8 -m 24 --mem-limit 44.4GB --time-limit 4s",
    "8x24, 0.75 of it": f"{_8_LARGE} -r 8 -m 24 --mem-limit 37GB --time-limit 4s",
    "8x24, half of it": f"{_8_LARGE} -r 8 -m 24 --mem-limit 30GB --time-limit 4s",
    "8x24, period": f"{_8} -r 8 -m 24 --mem-limit 34GB --objective period --time-limit 4s",
    "8x24, 8 iterations": f"{_8} -r 8 -m 24 --objective iterations:8 --time-limit 4s",
    "4x8, proven": f"{_OWN} -r 4 -m 8 --mem-limit 101MB --gap 0% --time-limit 4s",
    "4x8, MILP": f"{_OWN} -r 2 -m 3 --solver milp --time-limit 4s",
    # many ranks, many micro-batches
    "16x64": f"{_16} -r 16 -m 64 --mem-limit 30GB --time-limit 0.3s",
    "16x256, list scheduling": f"{_16} -r 16 -m 256 --mem-limit 60GB --time-limit 0.3s",
    "32x32": "zb-28.3b-p32-m96 -r 32 -m 32 --mem-limit 40GB --time-limit 0.02s",
    # several stages per rank
    "8x24, V": f"{_8} -r 8 -m 24 --placement v --time-limit 4s",
    "8x24, V, tight": f"{_8} -r 8 -m 24 --placement v --mem-limit 26GB --time-limit 4s",
    "8x24, V, period": f"{_8} -r 8 -m 24 --placement v --objective period --time-limit 4s",
    "8x24, looped": f"{_8} -r 8 -m 24 --placement looped:3 --mem-limit 36GB --time-limit 4s",
    "4x8, wave": f"{_8} -r 4 -m 8 --placement wave:2 --time-limit 4s",
    # two copies of the stages
    "8x16, both ways": f"{_8} -r 8 -m 16 --placement bidirectional --time-limit 4s",
    "4x8, both ways, V": f"{_8} -r 4 -m 8 --placement bidirectional-v --time-limit 4s",
    # recomputation, partitions, placements
    "4x8, recompute some": f"{_8} -r 4 -m 8 --recompute 0,1 --mem-limit 40GB --time-limit 4s",
    "4x8, recompute auto": f"{_8} -r 4 -m 8 --recompute auto --mem-limit 35GB --time-limit 4s",
    "4x8, layers by hand": f"{_8} -r 4 -m 8 --partition 7,6,6,5 --time-limit 4s",
    "8x24, layers searched": f"{_8} -r 8 -m 24 --partition search --time-limit 4s",
    "4x8, layers and recompute": (
        f"{_8} -r 4 -m 8 --partition search --recompute auto --mem-limit 38GB --time-limit 4s"
    ),
    "4x8, placement auto": f"{_8} -r 4 -m 8 --placement auto --time-limit 4s",
    "slow links": f"{_8} -r 8 -m 24 --link 8ms,1GB/s --mem-limit 34GB --time-limit 4s",
}
