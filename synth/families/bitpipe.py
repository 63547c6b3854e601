"""BitPipe: two V-shaped interleaved pipelines in opposite directions (arXiv 2410.19367)."""

from synth.families.bidirectional import concatenated
from synth.families.family import Family, Programs, Setting


def make(setting: Setting) -> Programs:
    return concatenated("bitpipe", setting)


FAMILY = Family("bitpipe", "Wu et al. 2024, arXiv 2410.19367", make, "bidirectional-wave:{}", 1)
