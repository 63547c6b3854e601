"""Building blocks that several families share; the published families are in the folder above."""
