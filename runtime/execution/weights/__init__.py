"""Weight passing and versions of weights: parameters on a rank during visits, and their sums."""
