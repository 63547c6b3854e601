"""The step loop of a rank: op after op of its lowered program, timed and traced."""
