"""Reports: charts and tables for the terminal, SVG plots, and explanations of runs."""
