"""Lower bounds on the objective, and who proves them when."""
