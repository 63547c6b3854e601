"""The small grids of published schedules, as their papers draw them: one column is a unit of time.

F0 is F of micro-batch 0, X is BW, -- goes on; lower case is the second stage or copy of a rank.
Wide ones go on in a second block. All ops of a kind take equally long, 1; where the last number is
0, W takes nothing and X so 1. Where each is from, and how it differs, stands in docs/families.md.
"""

_RELEASED_GREEDY = """
        F0 F1 F2 F3 F4 F5 F6 f0 b0 w0 f1 b1 w1 f2 b2 w2 f3 b3 w3 F7 B0 W0 f4 b4 w4 B1
        .. F0 F1 F2 F3 F4 f0 F5 f1 b0 w0 f2 b1 w1 f3 b2 w2 F6 B0 W0 f4 b3 w3 F7 B1 W1
        .. .. F0 F1 F2 f0 F3 f1 F4 f2 b0 w0 f3 b1 w1 F5 B0 W0 f4 b2 w2 F6 B1 W1 f5 b3
        .. .. .. F0 f0 F1 f1 F2 f2 F3 f3 b0 w0 F4 B0 W0 f4 b1 w1 F5 B1 W1 f5 b2 w2 F6

        W1 f5 b5 w5 B2 W2 f6 b6 w6 B3 W3 f7 b7 B4 w7 B5 W4 B6 W5 B7 W6 W7 .. .. ..
        f5 b4 w4 B2 W2 f6 b5 w5 B3 W3 f7 b6 B4 b7 B5 w6 B6 W4 B7 w7 W5 W6 W7 .. ..
        w3 F7 B2 W2 f6 b4 w4 B3 W3 f7 b5 B4 b6 B5 b7 B6 w5 B7 W4 w6 W5 w7 W6 W7 ..
        B2 W2 f6 b3 w3 F7 B3 W3 f7 b4 B4 b5 B5 b6 B6 b7 B7 w4 W4 w5 W5 w6 W6 w7 W7
    """

# Family with its options, ranks, micro-batches, units of W.
GRIDS = {
    # Huang et al. 2019: all forwards, then all backwards. PyTorch: the same.
    ("gpipe", 4, 4, 1): """
        F0 F1 F2 F3 .. .. .. .. .. .. .. .. .. X0 -- X1 -- X2 -- X3 --
        .. F0 F1 F2 F3 .. .. .. .. .. .. X0 -- X1 -- X2 -- X3 -- .. ..
        .. .. F0 F1 F2 F3 .. .. .. X0 -- X1 -- X2 -- X3 -- .. .. .. ..
        .. .. .. F0 F1 F2 F3 X0 -- X1 -- X2 -- X3 -- .. .. .. .. .. ..
    """,
    # Narayanan et al. 2021: PipeDream-Flush. PyTorch: the same.
    ("1f1b", 4, 6, 1): """
        F0 F1 F2 F3 .. .. .. .. .. .. X0 -- F4 X1 -- F5 X2 -- .. X3 -- .. X4 -- .. X5 --
        .. F0 F1 F2 .. .. .. .. X0 -- F3 X1 -- F4 X2 -- F5 X3 -- .. X4 -- .. X5 -- .. ..
        .. .. F0 F1 .. .. X0 -- F2 X1 -- F3 X2 -- F4 X3 -- F5 X4 -- .. X5 -- .. .. .. ..
        .. .. .. F0 X0 -- F1 X1 -- F2 X2 -- F3 X3 -- F4 X4 -- F5 X5 -- .. .. .. .. .. ..
    """,
    # Qi et al. 2023, figure 3: handcrafted, 1F1B's memory. PyTorch: the same.
    ("zb-h1", 4, 8, 1): """
        F0 F1 F2 F3 .. .. .. B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7
        .. F0 F1 F2 .. .. B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 B6 W5 B7 W6 W7
        .. .. F0 F1 .. B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 B7 W5 W6 W7
        .. .. .. F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7
    """,
    # The same figure: a parallelogram without a bubble between a rank's ops.
    ("zb-h2", 4, 8, 1): """
        F0 F1 F2 F3 F4 F5 F6 B0 W0 F7 B1 W1 B2 W2 B3 W3 B4 W4 B5 W5 B6 W6 B7 W7 .. .. ..
        .. F0 F1 F2 F3 F4 B0 F5 B1 F6 B2 W0 F7 B3 W1 B4 W2 B5 W3 B6 W4 B7 W5 W6 W7 .. ..
        .. .. F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 W0 F7 B5 W1 B6 W2 B7 W3 W4 W5 W6 W7 ..
        .. .. .. F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 W0 F7 B7 W1 W2 W3 W4 W5 W6 W7
    """,
    # Qi et al. 2023, the greedy with the memory of D micro-batches, of 2D, and of 5: the same as in
    # its authors' program (zb.py of sail-sg/zero-bubble-pipeline-parallelism).
    ("zb-1p", 4, 8, 1): """
        F0 F1 F2 F3 .. .. .. B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7
        .. F0 F1 F2 .. .. B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 B6 W5 B7 W6 W7
        .. .. F0 F1 .. B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 B7 W5 W6 W7
        .. .. .. F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7
    """,
    ("zb-2p", 4, 8, 1): """
        F0 F1 F2 F3 F4 F5 F6 B0 F7 W0 B1 W1 B2 W2 B3 W3 B4 W4 B5 W5 B6 W6 B7 W7 .. .. ..
        .. F0 F1 F2 F3 F4 B0 F5 B1 F6 B2 F7 B3 W0 B4 W1 B5 W2 B6 W3 B7 W4 W5 W6 W7 .. ..
        .. .. F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 W0 B6 W1 B7 W2 W3 W4 W5 W6 W7 ..
        .. .. .. F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 W0 W1 W2 W3 W4 W5 W6 W7
    """,
    ("zb-limit", 4, 8, 1): """
        F0 F1 F2 F3 F4 .. .. B0 W0 F5 B1 W1 F6 B2 B3 W2 F7 W3 B4 W4 B5 W5 B6 W6 B7 W7 ..
        .. F0 F1 F2 F3 .. B0 F4 B1 W0 F5 B2 B3 W1 F6 B4 W2 F7 B5 W3 B6 W4 W5 B7 W6 W7 ..
        .. .. F0 F1 F2 B0 F3 B1 F4 B2 W0 B3 F5 B4 W1 F6 B5 W2 F7 B6 W3 W4 B7 W5 W6 W7 ..
        .. .. .. F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 W0 F5 B5 W1 F6 B6 W2 F7 B7 W3 W4 W5 W6 W7
    """,
    # Narayanan et al. 2021, figure 4; PyTorch, and Wan et al. 2025, figure 5: the same.
    ("interleaved", 4, 8, 1): """
        F0 F1 F2 F3 f0 f1 f2 f3 F4 F5 F6 .. .. .. x0 -- F7 x1 -- .. f4 x2 -- f5 x3 -- f6 X0 --
        .. F0 F1 F2 F3 f0 f1 f2 f3 F4 .. .. x0 -- F5 x1 -- F6 x2 -- F7 x3 -- f4 X0 -- f5 X1 --
        .. .. F0 F1 F2 F3 f0 f1 f2 .. x0 -- f3 x1 -- F4 x2 -- F5 x3 -- F6 X0 -- F7 X1 -- f4 X2
        .. .. .. F0 F1 F2 F3 f0 x0 -- f1 x1 -- f2 x2 -- f3 x3 -- F4 X0 -- F5 X1 -- F6 X2 -- F7

        f7 X1 -- X2 -- .. X3 -- .. x4 -- .. x5 -- .. x6 -- .. x7 -- X4 -- X5 -- X6 -- X7 --
        f6 X2 -- f7 X3 -- .. x4 -- .. x5 -- .. x6 -- .. x7 -- X4 -- X5 -- X6 -- X7 -- .. ..
        -- f5 X3 -- f6 x4 -- f7 x5 -- .. x6 -- .. x7 -- X4 -- X5 -- X6 -- X7 -- .. .. .. ..
        X3 -- f4 x4 -- f5 x5 -- f6 x6 -- f7 x7 -- X4 -- X5 -- X6 -- X7 -- .. .. .. .. .. ..
    """,
    # Wan et al. 2025, figures 5 and 6: vD activations, and about half of it. Each op as soon as it
    # can; as drawn: PRINTED.
    ("gis:2", 4, 8, 1): """
        F0 F1 F2 F3 f0 f1 f2 f3 .. .. .. b0 w0 F4 b1 w1 F5 b2 w2 F6 b3 w3 F7 B0 W0 f4 B1 W1
        .. F0 F1 F2 F3 f0 f1 f2 .. .. b0 w0 f3 b1 w1 F4 b2 w2 F5 b3 w3 F6 B0 W0 F7 B1 W1 f4
        .. .. F0 F1 F2 F3 f0 f1 .. b0 w0 f2 b1 w1 f3 b2 w2 F4 b3 w3 F5 B0 W0 F6 B1 W1 F7 B2
        .. .. .. F0 F1 F2 F3 f0 b0 w0 f1 b1 w1 f2 b2 w2 f3 b3 w3 F4 B0 W0 F5 B1 W1 F6 B2 W2

        f5 B2 W2 f6 B3 W3 f7 b4 w4 .. b5 w5 .. b6 w6 .. b7 w7 B4 W4 B5 W5 B6 W6 B7 W7
        B2 W2 f5 B3 W3 f6 b4 w4 f7 b5 w5 .. b6 w6 .. b7 w7 B4 W4 B5 W5 B6 W6 B7 W7 ..
        W2 f4 B3 W3 f5 b4 w4 f6 b5 w5 f7 b6 w6 .. b7 w7 B4 W4 B5 W5 B6 W6 B7 W7 .. ..
        F7 B3 W3 f4 b4 w4 f5 b5 w5 f6 b6 w6 f7 b7 w7 B4 W4 B5 W5 B6 W6 B7 W7 .. .. ..
    """,
    ("gis:2,half", 4, 8, 1): """
        F0 F1 .. .. f0 f1 F2 F3 .. .. .. b0 w0 .. f2 b1 w1 f3 B0 W0 F4 B1 W1 F5 b2 w2 f4 b3
        .. F0 F1 .. .. f0 f1 F2 .. .. b0 w0 F3 b1 w1 f2 B0 W0 f3 B1 W1 F4 b2 w2 F5 b3 w3 f4
        .. .. F0 F1 .. .. f0 f1 .. b0 w0 F2 b1 w1 F3 B0 W0 f2 B1 W1 f3 b2 w2 F4 b3 w3 F5 B2
        .. .. .. F0 F1 .. .. f0 b0 w0 f1 b1 w1 F2 B0 W0 F3 B1 W1 f2 b2 w2 f3 b3 w3 F4 B2 W2

        w3 f5 B2 W2 F6 B3 W3 F7 b4 w4 f6 b5 w5 f7 B4 W4 B5 W5 .. b6 w6 .. b7 w7 B6 W6 B7 W7
        B2 W2 f5 B3 W3 F6 b4 w4 F7 b5 w5 f6 B4 W4 f7 B5 W5 .. b6 w6 .. b7 w7 B6 W6 B7 W7 ..
        W2 f4 B3 W3 f5 b4 w4 F6 b5 w5 F7 B4 W4 f6 B5 W5 f7 b6 w6 .. b7 w7 B6 W6 B7 W7 .. ..
        F5 B3 W3 f4 b4 w4 f5 b5 w5 F6 B4 W4 F7 B5 W5 f6 b6 w6 f7 b7 w7 B6 W6 B7 W7 .. .. ..
    """,
    # GIS-H's block repeated micro-batch by micro-batch: the order of the authors' program
    # (group_interleaved_1f1b.py of sail-sg/zero-bubble-pipeline-parallelism, group size 1).
    ("gis:2,uniform", 4, 8, 1): """
        F0 F1 .. .. f0 F2 f1 F3 .. .. .. b0 w0 f2 F4 .. b1 w1 f3 B0 W0 F5 b2 w2 f4 B1 W1 F6
        .. F0 F1 .. .. f0 F2 f1 .. .. b0 w0 F3 .. f2 b1 w1 F4 B0 W0 f3 b2 w2 F5 B1 W1 f4 b3
        .. .. F0 F1 .. .. f0 F2 .. b0 w0 f1 .. F3 b1 w1 f2 B0 W0 F4 b2 w2 f3 B1 W1 F5 b3 w3
        .. .. .. F0 F1 .. .. f0 b0 w0 F2 .. f1 b1 w1 F3 B0 W0 f2 b2 w2 F4 B1 W1 f3 b3 w3 F5

        b3 w3 f5 B2 W2 F7 b4 w4 f6 B3 W3 .. b5 w5 f7 B4 W4 .. b6 w6 .. B5 W5 b7 w7 B6 W6 B7
        w3 F6 B2 W2 f5 b4 w4 F7 B3 W3 f6 b5 w5 .. B4 W4 f7 b6 w6 .. B5 W5 b7 w7 B6 W6 B7 W7
        f4 B2 W2 F6 b4 w4 f5 B3 W3 F7 b5 w5 f6 B4 W4 .. b6 w6 f7 B5 W5 b7 w7 B6 W6 B7 W7 ..
        B2 W2 f4 b4 w4 F6 B3 W3 f5 b5 w5 F7 B4 W4 f6 b6 w6 B5 W5 f7 b7 w7 B6 W6 B7 W7 .. ..

        W7
        ..
        ..
        ..
    """,
    # Lamy-Poirier 2023; the same as in its author's program (ServiceNow/Fast-LLM).
    ("breadth-first", 4, 4, 0): """
        F0 F1 F2 F3 f0 f1 f2 f3 .. .. .. .. .. .. x0 x1 x2 x3 X0 X1 X2 X3
        .. F0 F1 F2 F3 f0 f1 f2 f3 .. .. .. .. x0 x1 x2 x3 X0 X1 X2 X3 ..
        .. .. F0 F1 F2 F3 f0 f1 f2 f3 .. .. x0 x1 x2 x3 X0 X1 X2 X3 .. ..
        .. .. .. F0 F1 F2 F3 f0 f1 f2 f3 x0 x1 x2 x3 X0 X1 X2 X3 .. .. ..
    """,
    # Li and Hoefler 2021: D/2 − 1 bubbles of a rank among the F's, as many among the B's. The three
    # of Chimera are the same as in its authors' programs (Shigangli/Chimera).
    ("chimera", 4, 4, 0): """
        F0 F1 .. f2 x2 f3 x3 X0 .. X1
        .. F0 f2 F1 f3 x2 X0 x3 X1 ..
        .. f2 F0 f3 F1 X0 x2 X1 x3 ..
        f2 f3 .. F0 X0 F1 X1 x2 .. x3
    """,
    # Two units by direct concatenation: F's of the second take the bubbles between them.
    ("chimera", 4, 8, 0): """
        F0 F1 .. f2 x2 f3 x3 X0 F4 X1 F5 f6 x6 f7 x7 X4 .. X5
        .. F0 f2 F1 f3 x2 X0 x3 X1 F4 f6 F5 f7 x6 X4 x7 X5 ..
        .. f2 F0 f3 F1 X0 x2 X1 x3 f6 F4 f7 F5 X4 x6 X5 x7 ..
        f2 f3 .. F0 X0 F1 X1 x2 f6 x3 f7 F4 X4 F5 X5 x6 .. x7
    """,
    # 2410.19367, figure 3, but each op as soon as it can; as drawn: BITPIPE_AS_DRAWN.
    ("bitpipe", 4, 4, 0): """
        F0 F1 .. f2 f2 f3 f3 f0 x0 f1 x1 x2 x2 x3 x3 X0 .. X1
        .. F0 f2 F1 f3 f2 f0 f3 f1 x0 x2 x1 x3 x2 X0 x3 X1 ..
        .. f2 F0 f3 F1 f0 f2 f1 f3 x2 x0 x3 x1 X0 x2 X1 x3 ..
        f2 f3 .. F0 f0 F1 f1 f2 x2 f3 x3 x0 X0 x1 X1 x2 .. x3
    """,
    # Two units: the order of the authors' program (wuhouming/BitPipe, bitpipe_schedule.py).
    ("bitpipe", 4, 8, 0): """
        F0 F1 .. f2 f2 f3 f3 f0 x0 f1 x1 x2 x2 x3 x3 X0 F4 X1 F5 f6 f6 f7 f7 f4 x4 f5 x5 x6
        .. F0 f2 F1 f3 f2 f0 f3 f1 x0 x2 x1 x3 x2 X0 x3 X1 F4 f6 F5 f7 f6 f4 f7 f5 x4 x6 x5
        .. f2 F0 f3 F1 f0 f2 f1 f3 x2 x0 x3 x1 X0 x2 X1 x3 f6 F4 f7 F5 f4 f6 f5 f7 x6 x4 x7
        f2 f3 .. F0 f0 F1 f1 f2 x2 f3 x3 x0 X0 x1 X1 x2 f6 x3 f7 F4 f4 F5 f5 f6 x6 f7 x7 x4

        x6 x7 x7 X4 .. X5
        x7 x6 X4 x7 X5 ..
        x5 X4 x6 X5 x7 ..
        X4 x5 X5 x6 .. x7
    """,
    # Jain et al. 2020, as arXiv 2107.06925 draws it: one micro-batch a rank; the same as in the
    # authors' program (OSU-Nowlab/MPI4DL), and in Chimera's authors'.
    ("gems", 4, 4, 1): """
        F0 .. .. .. .. .. .. .. .. .. X0 -- f1 x1 -- F2 .. .. .. .. .. .. .. .. .. .. ..
        .. F0 .. .. .. .. .. .. X0 -- f1 .. .. .. .. x1 -- F2 .. .. .. .. .. .. .. .. X2
        .. .. F0 .. .. .. X0 -- f1 .. .. .. .. .. .. .. .. x1 -- F2 .. .. .. .. X2 -- f3
        .. .. .. F0 X0 -- f1 .. .. .. .. .. .. .. .. .. .. .. .. x1 -- F2 X2 -- f3 .. ..

        .. X2 -- f3 x3 -- .. .. .. .. .. ..
        -- f3 .. .. .. .. x3 -- .. .. .. ..
        .. .. .. .. .. .. .. .. x3 -- .. ..
        .. .. .. .. .. .. .. .. .. .. x3 --
    """,
    # Liu et al. 2023: one wave, F = B; the same as in topal-team/elf, also for more waves.
    ("hanayo", 4, 4, 0): """
        F0 F1 F2 F3 .. .. .. f0 x0 f1 x1 f2 x2 f3 x3 X0 .. X1 .. X2 .. X3
        .. F0 F1 F2 .. .. f0 F3 f1 x0 f2 x1 f3 x2 X0 x3 X1 .. X2 .. X3 ..
        .. .. F0 F1 .. f0 F2 f1 F3 f2 x0 f3 x1 X0 x2 X1 x3 X2 .. X3 .. ..
        .. .. .. F0 f0 F1 f1 F2 f2 F3 f3 x0 X0 x1 X1 x2 X2 x3 X3 .. .. ..
    """,
    # 2107.06925, section 3.5: two micro-batches in each slot of F, one in each of B.
    ("chimera:doubling", 4, 8, 1): """
        F0 F1 F2 F3 f4 f5 x4 -- f6 f7 x5 -- .. X0 -- x6 -- X1 -- x7 -- X2 -- .. .. X3 --
        .. F0 F1 f4 f5 F2 F3 f6 f7 x4 -- X0 -- x5 -- X1 -- x6 -- X2 -- x7 -- X3 -- .. ..
        .. f4 f5 F0 F1 f6 f7 F2 F3 X0 -- x4 -- X1 -- x5 -- X2 -- x6 -- X3 -- x7 -- .. ..
        f4 f5 f6 f7 F0 F1 X0 -- F2 F3 X1 -- .. x4 -- X2 -- x5 -- X3 -- x6 -- .. .. x7 --
    """,
    # Zhang et al. 2023: by hand from the rule that mixpipe.py states, K = 4.
    ("mixpipe", 4, 8, 1): """
        F0 F1 F2 f4 x4 -- F3 f5 x5 -- f6 X0 -- x6 -- f7 x7 -- X1 -- .. X2 -- .. .. X3 --
        .. F0 f4 F1 f5 F2 x4 -- f6 X0 -- F3 x5 -- f7 X1 -- x6 -- X2 -- x7 -- X3 -- .. ..
        .. f4 F0 f5 F1 f6 X0 -- F2 x4 -- f7 X1 -- F3 x5 -- X2 -- x6 -- X3 -- x7 -- .. ..
        f4 f5 f6 F0 X0 -- f7 F1 X1 -- F2 x4 -- X2 -- F3 X3 -- x5 -- .. x6 -- .. .. x7 --
    """,
    # 2410.19367 without the V: by hand from the slots that concatenated_units.py states.
    ("bitpipe-loop", 4, 4, 0): """
        F0 F1 .. f2 f0 f3 f1 f2 x2 f3 x3 x0 x2 x1 x3 X0 .. X1
        .. F0 f2 F1 f3 f0 f2 f1 f3 x2 x0 x3 x1 x2 X0 x3 X1 ..
        .. f2 F0 f3 F1 f2 f0 f3 f1 x0 x2 x1 x3 X0 x2 X1 x3 ..
        f2 f3 .. F0 f2 F1 f3 f0 x0 f1 x1 x2 X0 x3 X1 x2 .. x3
    """,
    # Its appendix B: ours, of the figure only time and memory are known.
    ("bitpipe:1,early", 4, 8, 1): """
        F0 F1 F2 f4 f4 f5 f5 f0 x0 -- f1 F3 x1 -- f6 x4 -- f6 x4 -- .. x5 -- f2 x2 -- f7
        .. F0 f4 F1 f5 f4 f0 f5 f1 F2 x0 -- f6 x4 -- F3 x1 -- f6 x5 -- f2 x4 -- f7 X0 --
        .. f4 F0 f5 F1 f0 f4 f1 f5 f6 x4 -- F2 x0 -- f7 x5 -- f2 x1 -- f6 X0 -- F3 x4 --
        f4 f5 f6 F0 f0 F1 f1 f4 x4 -- f5 f7 x5 -- F2 x0 -- f2 X0 -- .. x1 -- f6 x6 -- F3

        f7 x5 -- X0 -- f3 x3 -- x6 -- x6 -- x7 -- x7 -- X1 -- .. .. X2 -- X3 --
        x2 -- f7 f3 x6 -- x5 -- x3 -- x7 -- x6 -- X1 -- x7 -- X2 -- X3 -- .. ..
        x6 -- f3 f7 x2 -- X1 -- x7 -- x3 -- X2 -- x5 -- X3 -- x6 -- x7 -- .. ..
        f3 X1 -- x4 -- f7 x7 -- x2 -- X2 -- x3 -- X3 -- x5 -- .. .. x6 -- x7 --
    """,
    # DeepSeek-V3: the same as in deepseek-ai/DualPipe.
    ("dualpipe", 4, 8, 1): """
        F0 F1 F2 f4 b4 w4 f5 F3 x5 -- f6 X0 -- x6 -- f7 .. X1 -- x7 -- B2 W2 B3 W3
        .. F0 f4 F1 f5 F2 x4 -- f6 X0 -- F3 x5 -- f7 X1 -- x6 -- X2 -- b7 B3 w7 W3
        .. f4 F0 f5 F1 f6 X0 -- F2 x4 -- f7 X1 -- F3 x5 -- X2 -- x6 -- B3 b7 W3 w7
        f4 f5 f6 F0 B0 W0 F1 f7 X1 -- F2 x4 -- X2 -- F3 .. x5 -- X3 -- b6 w6 b7 w7
    """,
    # Qi et al. 2023: the V-shaped parallelogram. PyTorch: the same.
    ("zb-v", 4, 8, 1): """
        F0 F1 F2 F3 F4 F5 F6 f0 b0 w0 f1 b1 w1 f2 b2 w2 f3 b3 w3 F7 B0 W0 f4 b4 w4 B1
        .. F0 F1 F2 F3 F4 f0 F5 f1 b0 w0 f2 b1 w1 f3 b2 w2 F6 B0 W0 f4 b3 w3 F7 B1 W1
        .. .. F0 F1 F2 f0 F3 f1 F4 f2 b0 w0 f3 b1 w1 F5 B0 W0 f4 b2 w2 F6 B1 W1 f5 b3
        .. .. .. F0 f0 F1 f1 F2 f2 F3 f3 b0 w0 F4 B0 W0 f4 b1 w1 F5 B1 W1 f5 b2 w2 F6

        W1 f5 b5 w5 B2 W2 f6 b6 w6 B3 W3 f7 b7 w7 B4 W4 B5 W5 B6 W6 B7 W7 .. .. ..
        f5 b4 w4 B2 W2 f6 b5 w5 B3 W3 f7 b6 w6 B4 b7 B5 W4 B6 W5 B7 W6 w7 W7 .. ..
        w3 F7 B2 W2 f6 b4 w4 B3 W3 f7 b5 w5 B4 b6 B5 b7 B6 W4 B7 W5 w6 w7 W6 W7 ..
        B2 W2 f6 b3 w3 F7 B3 W3 f7 b4 w4 B4 b5 B5 b6 B6 b7 B7 W4 w5 w6 w7 W5 W6 W7
    """,
    # The released greedy in the memory of D micro-batches: the same as in its authors' program
    # (zbv.py of sail-sg/zero-bubble-pipeline-parallelism).
    ("zb-v-greedy", 4, 8, 1): _RELEASED_GREEDY,
    # Within ten activations: no bubble in the period, for which the greedy needs eight of them.
    ("zb-v-limit", 4, 8, 1): _RELEASED_GREEDY,
    # Qi et al. 2024, placed by V-Half's block: ours, as short as the authors' (V_AUTHORS).
    ("v-half", 4, 8, 1): """
        F0 F1 F2 F3 F4 .. .. f0 b0 w0 f1 b1 w1 .. f2 b2 B0 W0 w2 f3 F5 b3 B1 W1 w3 f4 F6 b4
        .. F0 F1 F2 F3 .. f0 .. f1 b0 w0 .. b1 f2 w1 B0 W0 F4 f3 b2 w2 B1 W1 F5 f4 b3 w3 B2
        .. .. F0 F1 F2 f0 F3 f1 .. .. b0 w0 f2 b1 B0 W0 w1 f3 F4 .. B1 b2 W1 f4 w2 F5 B2 b3
        .. .. .. F0 f0 F1 f1 F2 f2 .. .. b0 w0 B0 W0 F3 f3 b1 w1 B1 W1 F4 f4 b2 w2 B2 W2 F5

        B2 W2 w4 f5 F7 b5 B3 W3 w5 f6 b6 w6 B4 W4 .. f7 b7 B5 W5 B6 w7 W6 .. B7 W7
        W2 F6 f5 b4 w4 B3 W3 F7 f6 b5 w5 B4 W4 b6 f7 w6 B5 b7 B6 W5 w7 W6 B7 W7 ..
        W2 f5 w3 F6 B3 b4 W3 f6 w4 F7 B4 b5 W4 f7 b6 B5 w5 B6 b7 W5 w6 B7 W6 w7 W7
        f5 b3 w3 B3 W3 F6 f6 b4 w4 B4 W4 F7 f7 b5 B5 b6 B6 w5 W5 b7 B7 w6 W6 w7 W7
    """,
    # V-Min's block: likewise.
    ("v-min", 4, 8, 1): """
        F0 F1 .. .. .. .. .. f0 b0 w0 F2 .. .. f1 b1 B0 w1 W0 F3 f2 b2 B1 w2 W1 F4 f3 b3 B2
        .. F0 .. .. .. .. f0 F1 .. b0 w0 .. f1 F2 B0 b1 W0 w1 f2 F3 B1 b2 W1 w2 f3 F4 B2 b3
        .. .. F0 .. .. f0 .. .. F1 .. b0 f1 w0 B0 F2 W0 b1 f2 w1 B1 F3 W1 b2 f3 w2 B2 F4 W2
        .. .. .. F0 f0 .. .. .. .. F1 f1 b0 B0 w0 W0 F2 f2 b1 B1 w1 W1 F3 f3 b2 B2 w2 W2 F4

        w3 W2 F5 f4 b4 B3 w4 W3 F6 f5 b5 B4 w5 W4 F7 f6 b6 B5 w6 W5 .. f7 b7 B6 w7 W6 .. ..
        W2 w3 f4 F5 B3 b4 W3 w4 f5 F6 B4 b5 W4 w5 f6 F7 B5 b6 W5 w6 f7 .. B6 b7 W6 w7 .. ..
        b3 f4 w3 B3 F5 W3 b4 f5 w4 B4 F6 W4 b5 f6 w5 B5 F7 W5 b6 f7 w6 B6 W6 .. b7 w7 .. B7
        f4 b3 B3 w3 W3 F5 f5 b4 B4 w4 W4 F6 f6 b5 B5 w5 W5 F7 f7 b6 B6 w6 W6 .. .. b7 B7 w7

        .. B7 W7
        B7 W7 ..
        W7 .. ..
        W7 .. ..
    """,
    # DeepSeek-AI 2025, DualPipeV. PyTorch: the same.
    ("dualpipe-v", 4, 10, 1): """
        F0 F1 F2 F3 F4 F5 F6 f0 b0 w0 f1 b1 w1 f2 b2 w2 f3 F7 x3 -- f4 X0 -- F8 x4 -- f5 X1
        .. F0 F1 F2 F3 F4 f0 F5 f1 b0 w0 f2 b1 w1 f3 F6 x2 -- f4 X0 -- F7 x3 -- f5 X1 -- F8
        .. .. F0 F1 F2 f0 F3 f1 F4 f2 b0 w0 f3 F5 x1 -- f4 X0 -- F6 x2 -- f5 X1 -- F7 x3 --
        .. .. .. F0 f0 F1 f1 F2 f2 F3 f3 F4 x0 -- f4 X0 -- F5 x1 -- f5 X1 -- F6 x2 -- f6 X2

        -- F9 x5 -- f6 X2 -- x6 -- f7 .. X3 -- x7 -- f8 .. X4 -- x8 -- f9 .. X5 -- x9 -- B6
        x4 -- f6 X2 -- F9 x5 -- f7 X3 -- x6 -- f8 .. X4 -- x7 -- f9 .. X5 -- x8 -- X6 -- b9
        f6 X2 -- F8 x4 -- f7 X3 -- F9 x5 -- f8 X4 -- x6 -- f9 .. X5 -- x7 -- X6 -- x8 -- B7
        -- F7 x3 -- f7 X3 -- F8 x4 -- f8 X4 -- F9 x5 -- f9 X5 -- x6 -- X6 -- x7 -- X7 -- b8

        W6 B7 W7 B8 W8 B9 W9
        B7 w9 B8 W7 B9 W8 W9
        b9 B8 W7 B9 w9 W8 W9
        B8 b9 B9 w8 W8 w9 W9
    """,
    # Groups of three on two ranks: F of the second round begins a slot after it could. Groups of
    # any size are the same as in Megatron-LM.
    ("interleaved:2,group=3", 2, 6, 0): """
        F0 F1 F2 f0 f1 f2 x0 F3 x1 F4 x2 F5 X0 f3 X1 f4 X2 f5 x3 .. x4 .. x5 X3 X4 X5
        .. F0 F1 F2 f0 x0 f1 x1 f2 x2 F3 X0 F4 X1 F5 X2 f3 x3 f4 x4 f5 x5 X3 X4 X5 ..
    """,
    # Five micro-batches in even groups of three and two.
    ("interleaved:2", 2, 5, 0): """
        F0 F1 F2 f0 f1 f2 x0 F3 x1 F4 x2 f3 X0 f4 X1 .. X2 .. x3 x4 X3 X4
        .. F0 F1 F2 f0 x0 f1 x1 f2 x2 F3 X0 F4 X1 f3 X2 f4 x3 x4 X3 X4 ..
    """,
    # One group of all: as Llama 3 runs fewer micro-batches than a multiple of the ranks.
    ("interleaved:2,group=6", 4, 6, 0): """
        F0 F1 F2 F3 F4 F5 f0 f1 f2 f3 f4 f5 .. x0 .. x1 .. x2 .. x3 .. x4 .. x5 X0 X1 X2 X3
        .. F0 F1 F2 F3 F4 F5 f0 f1 f2 f3 f4 x0 f5 x1 .. x2 .. x3 .. x4 .. x5 X0 X1 X2 X3 X4
        .. .. F0 F1 F2 F3 F4 F5 f0 f1 f2 x0 f3 x1 f4 x2 f5 x3 .. x4 .. x5 X0 X1 X2 X3 X4 X5
        .. .. .. F0 F1 F2 F3 F4 F5 f0 x0 f1 x1 f2 x2 f3 x3 f4 x4 f5 x5 X0 X1 X2 X3 X4 X5 ..

        X4 X5
        X5 ..
        .. ..
        .. ..
    """,
}

# arXiv 2410.19367, figure 3, after the drawing in the authors' repository (wuhouming/BitPipe): B
# takes 2 F, each op where they draw it; here capitals are the first four stages, of both copies.
BITPIPE_AS_DRAWN = """
    F0 .. F1 F2 f2 F3 f3 f0 x0 -- f1 .. x1 -- x2 -- X2 -- x3 -- X3 -- X0 -- .. .. X1 --
    .. F0 F2 F1 F3 f2 f0 f3 f1 .. x0 -- x2 -- x1 -- x3 -- X2 -- X0 -- X3 -- X1 -- .. ..
    .. F2 F0 F3 F1 f0 f2 f1 f3 .. x2 -- x0 -- x3 -- x1 -- X0 -- X2 -- X1 -- X3 -- .. ..
    F2 .. F3 F0 f0 F1 f1 f2 x2 -- f3 .. x3 -- x0 -- X0 -- x1 -- X1 -- X2 -- .. .. X3 --
"""

# Wan et al. 2025 (arXiv 2503.01328), figure 5, top and bottom, and figure 6, bottom: the
# micro-batches of each rank's cells, from 1, bubbles left out; B and W are two cells.
PRINTED = {
    "interleaved:2": """
        1 2 3 4 1 2 3 4 5 6 7 1 8 2 5 3 6 4 7 1 8 2 3 4 5 6 7 8 5 6 7 8
        1 2 3 4 1 2 3 4 5 1 6 2 7 3 8 4 5 1 6 2 7 3 8 4 5 6 7 8 5 6 7 8
        1 2 3 4 1 2 3 1 4 2 5 3 6 4 7 1 8 2 5 3 6 4 7 5 8 6 7 8 5 6 7 8
        1 2 3 4 1 1 2 2 3 3 4 4 5 1 6 2 7 3 8 4 5 5 6 6 7 7 8 8 5 6 7 8
    """,
    "gis:2": """
        1 2 3 4 1 2 3 4 1 1 5 2 2 6 3 3 7 4 4 8 1 1 5 2 2 6 3 3 7 4 4 8
        1 2 3 4 1 2 3 1 1 4 2 2 5 3 3 6 4 4 7 1 1 8 2 2 5 3 3 6 4 4 7
        1 2 3 4 1 2 1 1 3 2 2 4 3 3 5 4 4 6 1 1 7 2 2 8 3 3 5 4 4 6
        1 2 3 4 1 1 1 2 2 2 3 3 3 4 4 4 5 1 1 6 2 2 7 3 3 8 4 4

        5 5 6 6 7 7 8 8 5 5 6 6 7 7 8 8
        5 5 8 6 6 7 7 8 8 5 5 6 6 7 7 8 8
        5 5 7 6 6 8 7 7 8 8 5 5 6 6 7 7 8 8
        5 5 5 6 6 6 7 7 7 8 8 8 5 5 6 6 7 7 8 8
    """,
    "gis:2,half": """
        1 2 1 2 3 4 1 1 3 2 2 4 1 1 5 2 2 6 3 3 5 4 4 6 3 3 7 4 4 8
        1 2 1 2 3 1 1 4 2 2 3 1 1 4 2 2 5 3 3 6 4 4 5 3 3 6 4 4 7
        1 2 1 2 1 1 3 2 2 4 1 1 3 2 2 4 3 3 5 4 4 6 3 3 5 4 4 6
        1 2 1 1 1 2 2 2 3 1 1 4 2 2 3 3 3 4 4 4 5 3 3 6 4 4

        5 5 7 6 6 8 5 5 6 6 7 7 8 8 7 7 8 8
        5 5 8 6 6 7 5 5 8 6 6 7 7 8 8 7 7 8 8
        5 5 7 6 6 8 5 5 7 6 6 8 7 7 8 8 7 7 8 8
        5 5 5 6 6 6 7 5 5 8 6 6 7 7 7 8 8 8 7 7 8 8
    """,
}

# Megatron-LM's own example (convert_schedule_table_to_order): two ranks, five micro-batches in
# groups of three; the chunks of rank 0 from 1, backwards negative.
MEGATRON_S_ORDER = "1 1 1 2 2 2 -2 1 -2 1 -2 2 -1 2 -1 -1 -2 -2 -1 -1"

# Schedules of the authors' program (sail-sg/zero-bubble-pipeline-parallelism, zbv_greedy.py) from
# their two building blocks for F = B = W. It squeezes and reorders by a rule that is not printed.
V_AUTHORS = {
    "v-half": """
        F0 F1 F2 F3 F4 .. .. f0 b0 w0 f1 b1 w1 f2 .. .. B0 b2 w2 f3 W0 F5 B1 b3 w3 f4 W1 F6
        .. F0 F1 F2 F3 .. f0 .. f1 b0 w0 f2 b1 w1 .. B0 W0 F4 f3 b2 w2 B1 W1 F5 f4 b3 w3 B2
        .. .. F0 F1 F2 f0 .. f1 .. f2 b0 w0 F3 b1 B0 w1 W0 f3 F4 .. B1 b2 w2 f4 W1 F5 B2 b3
        .. .. .. F0 f0 F1 f1 F2 f2 .. .. b0 w0 B0 W0 F3 f3 b1 w1 B1 W1 F4 f4 b2 w2 B2 W2 F5

        B2 b4 w4 f5 W2 F7 B3 b5 w5 f6 b6 w6 B4 W3 W4 f7 b7 B5 w7 B6 W5 W6 .. B7 W7
        W2 F6 f5 b4 w4 B3 F7 W3 f6 b5 w5 B4 b6 w6 f7 W4 B5 b7 B6 w7 W5 W6 B7 W7 ..
        w3 f5 W2 F6 B3 b4 w4 f6 W3 F7 B4 b5 w5 f7 b6 B5 w6 B6 b7 w7 W4 B7 W5 W6 W7
        f5 b3 w3 B3 F6 W3 f6 b4 B4 w4 F7 W4 f7 b5 B5 b6 B6 w5 w6 b7 B7 w7 W5 W6 W7
    """,
    "v-min": """
        F0 F1 F2 .. .. .. .. f0 b0 w0 f1 b1 w1 .. .. B0 W0 F3 .. f2 b2 B1 w2 W1 F4 f3 b3 B2
        .. F0 F1 .. .. .. f0 .. f1 b0 w0 F2 .. .. B0 b1 w1 W0 f2 F3 B1 b2 w2 W1 f3 F4 B2 b3
        .. .. F0 F1 .. f0 .. f1 .. .. b0 w0 F2 B0 W0 .. b1 f2 w1 B1 F3 W1 b2 f3 w2 B2 F4 W2
        .. .. .. F0 f0 F1 f1 .. .. .. .. b0 B0 w0 W0 F2 f2 b1 B1 w1 W1 F3 f3 b2 B2 w2 W2 F4

        w3 W2 F5 f4 b4 B3 w4 W3 F6 f5 b5 B4 w5 W4 F7 f6 b6 B5 w6 W5 .. f7 b7 B6 w7 W6 .. ..
        w3 W2 f4 F5 B3 b4 w4 W3 f5 F6 B4 b5 w5 W4 f6 F7 B5 b6 w6 W5 f7 .. B6 b7 w7 W6 .. ..
        b3 f4 w3 B3 F5 W3 b4 f5 w4 B4 F6 W4 b5 f6 w5 B5 F7 W5 b6 f7 w6 B6 W6 .. b7 w7 .. B7
        f4 b3 B3 w3 W3 F5 f5 b4 B4 w4 W4 F6 f6 b5 B5 w5 W5 F7 f7 b6 B6 w6 W6 .. .. b7 B7 w7

        .. B7 W7
        B7 W7 ..
        W7 .. ..
        W7 .. ..
    """,
}

# Moves take no time, so these are written as programs. BPipe (Kim et al. 2023), by hand from the
# rule that bpipe.py states: rank 0 holds three at most, K of four ranks, and rank 3 what rank 0
# sent it; ranks 1 and 2 are 1F1B's. PipeOffload: F, B and W of 2, and as long for a transfer to the
# host or back; the first is the order of the authors' program (offloading.py of the repository
# above, a stream each way, half of BW to spare); the second has the F, B and W of their
# group_interleaved_1f1b.py, and moves by the same rule.
PROGRAMS = {
    # Yeung et al. 2024, by hand from the rule that vocab_1f1b.py states: F = 1, BW = 2, S + T = 3,
    # so intervals of 6. S of rank 0 is one interval late, that of rank 1 none; T is one late on
    # both, B two and one; parts of the embedding are one and two early.
    ("1f1b-vocab", 2, 2): """
        F0.0 F0.1 F2.0 F2.1 F4.0 BW4.0 F4.1 BW2.0 BW4.1 BW0.0 BW2.1 BW0.1
        F1.0 F1.1 F3.0 F5.0 F3.1 F5.1 BW3.0 BW5.0 BW3.1 BW5.1 BW1.0 BW1.1
    """,
    # Its table of turns: F0 | F1 | F0 with BW1 | F1 with BW0 | BW1 | BW0, rank 1 a turn later.
    ("weipipe", 2, 4): """
        U1.0 F0.0 F1.0 U1.1 BW1.0 F0.2 U1.2 BW0.0 F1.2 U1.3 BW1.2 BW0.2
        U0.0@1 F0.1@1 U0.1@1 F1.1@1 BW1.1@1 F0.3@1 U0.2@1 BW0.1@1 F1.3@1 U0.3@1 BW1.3@1 BW0.3@1
    """,
    # 1F1B without a flush, by hand from the papers' rules: an update after each backward, or after
    # two of them. Narayanan et al. 2019, figure 8, has the order of the first.
    ("pipedream", 3, 4): """
        F0.0 F0.1 F0.2 BW0.0 STEP0 F0.3 BW0.1 STEP0.1 BW0.2 STEP0.2 BW0.3 STEP0.3
        F1.0 F1.1 BW1.0 STEP1 F1.2 BW1.1 STEP1.1 F1.3 BW1.2 STEP1.2 BW1.3 STEP1.3
        F2.0 BW2.0 STEP2 F2.1 BW2.1 STEP2.1 F2.2 BW2.2 STEP2.2 F2.3 BW2.3 STEP2.3
    """,
    ("2bw", 2, 4): """
        F0.0 F0.1 BW0.0 F0.2 BW0.1 STEP0 F0.3 BW0.2 BW0.3 STEP0.1
        F1.0 BW1.0 F1.1 BW1.1 STEP1 F1.2 BW1.2 F1.3 BW1.3 STEP1.1
    """,
    ("paci", 3, 4): """
        F0.0 F0.1 F0.2 BW0.0 F0.3 BW0.1 STEP0 BW0.2 BW0.3 STEP0.1
        F1.0 F1.1 BW1.0 F1.2 BW1.1 STEP1 F1.3 BW1.2 BW1.3 STEP1.1
        F2.0 BW2.0 F2.1 BW2.1 STEP2 F2.2 BW2.2 F2.3 BW2.3 STEP2.1
    """,
    # Yang et al. 2022, by hand from the order that wpipe.py states: after k + n − 1 − r forwards a
    # forward and a backward in turn.
    ("wpipe:every=2", 2, 4): """
        F0.0 F0.1 F2.0 F2.1 BW2.0 F0.2 BW2.1 STEP2 F0.3 BW0.0 F2.2 BW0.1 STEP0 F2.3 BW2.2 BW2.3 \
STEP2.1 BW0.2 BW0.3 STEP0.1
        F1.0 F1.1 F3.0 BW3.0 F3.1 BW3.1 STEP3 F1.2 BW1.0 F1.3 BW1.1 STEP1 F3.2 BW3.2 F3.3 BW3.3 \
STEP3.1 BW1.2 BW1.3 STEP1.1
    """,
    # Chen et al. 2012: in a tick one forward and one backward; stage 0 of 2 has three in flight.
    ("delayed-update", 2, 4): """
        F0.0 F0.1 F0.2 BW0.0 STEP0 F0.3 BW0.1 STEP0.1 BW0.2 STEP0.2 BW0.3 STEP0.3
        F1.0 BW1.0 STEP1 F1.1 BW1.1 STEP1.1 F1.2 BW1.2 STEP1.2 F1.3 BW1.3 STEP1.3
    """,
    # Li et al. 2020: one micro-batch after the other.
    ("data-parallel", 2, 3): """
        F0.0 F1.0 BW1.0 BW0.0 F0.2 F1.2 BW1.2 BW0.2
        F0.1@1 F1.1@1 BW1.1@1 BW0.1@1
    """,
    # Rajbhandari et al. 2020, section 5: parameters are gathered once, and gradients reduced after
    # the last backward of a stage, or after each.
    ("zero1:1", 2, 4): """
        U0.0 U1.0 F0.0 F1.0 BW1.0 BW0.0 F0.2 F1.2 BW1.2 A1.0 BW0.2 A0.0
        U0.0@1 U1.0@1 F0.1@1 F1.1@1 BW1.1@1 BW0.1@1 F0.3@1 F1.3@1 BW1.3@1 A1.0@1 BW0.3@1 A0.0@1
    """,
    ("zero2:1", 2, 4): """
        U0.0 U1.0 F0.0 F1.0 BW1.0 A1.0 BW0.0 A0.0 F0.2 F1.2 BW1.2 A1.1 BW0.2 A0.1
        U0.0@1 U1.0@1 F0.1@1 F1.1@1 BW1.1@1 A1.0@1 BW0.1@1 A0.0@1 \
F0.3@1 F1.3@1 BW1.3@1 A1.1@1 BW0.3@1 A0.1@1
    """,
    # Zhao et al. 2023, section 3: gathered one stage ahead, freed after each forward and backward.
    ("zero3:1", 2, 2): """
        U0.0 U1.0 F0.0 D0.0 U0.1 F1.0 BW1.0 D1.0 A1.0 BW0.0 D0.1 A0.0
        U0.0@1 U1.0@1 F0.1@1 D0.0@1 U0.1@1 F1.1@1 BW1.1@1 D1.0@1 A1.0@1 BW0.1@1 D0.1@1 A0.0@1
    """,
    # Wu and Chen, by hand from the rule that tawpipe.py states; the home of stage s is rank s. Two
    # ops of a stage in a row share a visit.
    ("tawpipe", 2, 4): """
        U1.0 F0.0 F1.0 BW1.0 D1.0 U1.1 BW0.0 A1.0 F0.2 F1.2 A0.0
        U0.0@1 F0.1@1 D0.0@1 U0.1@1 F1.1@1 BW1.1@1 BW0.1@1 F0.3@1 D0.1@1 A0.0@1 A1.0@1

        BW1.2 D1.1 BW0.2 A1.1 A0.1
        U0.2@1 F1.3@1 BW1.3@1 BW0.3@1 D0.2@1 A0.1@1 A1.1@1
    """,
    # Feng et al. 2023, by hand from the rule that mobius.py states: the order of breadth-first, and
    # the weights of the next stage come while one runs.
    ("mobius:2", 2, 2): """
        U0.0 U2.0 F0.0 F0.1 D0.0 U0.1 F2.0 F2.1 BW2.0 BW2.1 D2.0 A2.0 BW0.0 BW0.1 D0.1 A0.0
        U1.0 U3.0 F1.0 F1.1 D1.0 U1.1 F3.0 F3.1 BW3.0 BW3.1 D3.0 A3.0 BW1.0 BW1.1 D1.1 A1.0
    """,
    # Luo et al. 2026, by hand from the rule that roundpipe.py states: slots of the stages 0 1 2, 3
    # (forward and backward), 2, 1 and 0 on the ranks in turn. The second round begins on rank 1.
    ("roundpipe:2", 2, 4): """
        U0.0 U1.0 U2.0 F0.0 F1.0 F2.0 F0.1 F1.1 F2.1 D0.0 D1.0 D2.0 U2.1 U0.1 R2.0 BW2.0 R2.1 BW2.1
        U3.0 U1.1 F3.0 BW3.0 F3.1 BW3.1 D3.0 A3.0 U0.0@1 U1.0@1 U2.0@1 R1.0 BW1.0 R1.1 BW1.1 D1.1

        D2.1 A2.0 U3.0@1 R0.0 BW0.0 R0.1 BW0.1 D0.1 A0.0 U1.1@1 F3.2@1 BW3.2@1 F3.3@1 BW3.3@1 D3.0@1
        A1.0 F0.2@1 F1.2@1 F2.2@1 F0.3@1 F1.3@1 F2.3@1 D0.0@1 D1.0@1 D2.0@1 U2.1@1 U0.1@1 R2.2@1

        A3.0@1 R1.2@1 BW1.2@1 R1.3@1 BW1.3@1 D1.1@1 A1.0@1
        BW2.2@1 R2.3@1 BW2.3@1 D2.1@1 A2.0@1 R0.2@1 BW0.2@1 R0.3@1 BW0.3@1 D0.1@1 A0.0@1
    """,
    ("bpipe", 4, 5): """
        F0.0 F0.1 O0.1 F0.2 O0.2 F0.3 BW0.0 L0.1 F0.4 O0.4 BW0.1 L0.2 BW0.2 L0.4 BW0.3 BW0.4
        F1.0 F1.1 F1.2 BW1.0 F1.3 BW1.1 F1.4 BW1.2 BW1.3 BW1.4
        F2.0 F2.1 BW2.0 F2.2 BW2.1 F2.3 BW2.2 F2.4 BW2.3 BW2.4
        K0.1 K0.2 F3.0 BW3.0 F3.1 BW3.1 F3.2 BW3.2 G0.1 F3.3 K0.4 BW3.3 G0.2 F3.4 BW3.4 G0.4
    """,
    ("pipeoffload:2", 4, 4): """
        F0.0 O0.0 F0.1 O0.1 F0.2 O0.2 F0.3 O0.3 F4.0 F4.1 F4.2 F4.3
        F1.0 O1.0 F1.1 O1.1 F1.2 O1.2 F1.3 O1.3 F5.0 F5.1 F5.2 F5.3
        F2.0 O2.0 F2.1 O2.1 F2.2 O2.2 F2.3 O2.3 F6.0 F6.1 F6.2 BW6.0 F6.3
        F3.0 O3.0 F3.1 O3.1 F3.2 O3.2 F3.3 O3.3 F7.0 BW7.0 F7.1 BW7.1 F7.2 BW7.2 F7.3

        BW4.0 BW4.1 BW4.2 L0.0 BW4.3 L0.1 BW0.0 L0.2 BW0.1 L0.3 BW0.2 BW0.3
        BW5.0 BW5.1 BW5.2 L1.0 BW5.3 L1.1 BW1.0 L1.2 BW1.1 L1.3 BW1.2 BW1.3
        BW6.1 BW6.2 L2.0 BW6.3 L2.1 BW2.0 L2.2 BW2.1 L2.3 BW2.2 BW2.3
        L3.0 BW7.3 L3.1 BW3.0 L3.2 BW3.1 L3.3 BW3.2 BW3.3
    """,
    ("pipeoffload:2,uniform", 4, 4): """
        F0.0 O0.0 F0.1 O0.1 F4.0 F0.2 O0.2 F4.1 F0.3 O0.3 B4.0 W4.0 F4.2 B4.1 W4.1 F4.3 L0.0
        F1.0 O1.0 F1.1 O1.1 F5.0 F1.2 O1.2 F5.1 B5.0 W5.0 F1.3 O1.3 F5.2 B5.1 W5.1 L1.0 B1.0
        F2.0 O2.0 F2.1 O2.1 F6.0 F2.2 O2.2 B6.0 W6.0 F6.1 F2.3 O2.3 B6.1 W6.1 L2.0 F6.2 B2.0
        F3.0 O3.0 F3.1 O3.1 F7.0 B7.0 W7.0 F3.2 O3.2 F7.1 B7.1 W7.1 L3.0 F3.3 O3.3 B3.0 W3.0

        B0.0 W0.0 B4.2 W4.2 L0.1 B0.1 W0.1 B4.3 L0.2 W4.3 B0.2 L0.3 W0.2 B0.3 W0.3
        W1.0 F5.3 B5.2 W5.2 L1.1 B1.1 W1.1 B5.3 L1.2 W5.3 B1.2 L1.3 W1.2 B1.3 W1.3
        W2.0 B6.2 W6.2 L2.1 F6.3 B2.1 W2.1 B6.3 L2.2 W6.3 B2.2 L2.3 W2.2 B2.3 W2.3
        F7.2 B7.2 L3.1 W7.2 B3.1 W3.1 F7.3 B7.3 L3.2 W7.3 B3.2 L3.3 W3.2 B3.3 W3.3
    """,
    ("pipeoffload:2,full", 2, 2): """
        F0.0 O0.0 F0.1 O0.1 F2.0 O2.0 F2.1 O2.1 L2.0 BW2.0 L2.1 L0.0 BW2.1 L0.1 BW0.0 BW0.1
        F1.0 O1.0 F1.1 O1.1 F3.0 BW3.0 F3.1 L1.0 BW3.1 L1.1 BW1.0 BW1.1
    """,
}
