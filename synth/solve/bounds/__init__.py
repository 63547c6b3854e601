"""Lower bounds on the objective, and the policy by which they are proven."""
