"""Looking at schedules in a terminal: Gantt charts and tables."""
