"""Colours of op kinds that eyes with any colour vision tell apart, lightened copies included.

The colours were searched for: the smallest distance between two of them, as CIE Lab 1976 and under
simulated protanopia, deuteranopia and tritanopia (Machado et al. 2009), is 17.9. The lightened ones
count, which mark a rank's further stages.
"""

from synth.op_kinds import OpKind

COLOURS = {
    OpKind.F: "#197cff",
    OpKind.B: "#8be1d1",
    OpKind.W: "#f5cb19",
    OpKind.BW: "#681949",
    OpKind.R: "#7880c3",
    OpKind.STEP: "#ee5319",
}

# Share of white, in linear light, in the colours of a rank's last stage copy.
LIGHTEST = 0.3
