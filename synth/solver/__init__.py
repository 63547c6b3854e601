"""Finding schedules: the problem, lower bounds, construction, exact search, improvement."""
