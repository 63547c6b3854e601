"""Quality and speed of the solver: suites of problems, each run to a table.

    python -m benchmarks.solver SUITE [--time-limit 60] [--only 8,32] [--json out.json]
    python -m benchmarks.solver --markdown table.json v.json

A row solves one problem, checks the answer by the verifier and against every published schedule
that fits, and says who found it and when.
"""
