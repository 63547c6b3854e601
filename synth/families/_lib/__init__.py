"""Building blocks that several families share; the papers' files stand beside this folder."""
