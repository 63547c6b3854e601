"""Models for scheduled model parallelism (`synth.runtime.strads`), besides Lasso.

The applications of Kim et al., EuroSys 2016, in small:

    logistic_regression     dynamic: candidates by priority, with a dependency check
    matrix_factorization    static: one factor after the other
    topic_model             static: words rotate among the ranks
"""
