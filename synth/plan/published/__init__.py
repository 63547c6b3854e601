"""Published schedules as their users run them: each with its best cut and recomputed layers."""
