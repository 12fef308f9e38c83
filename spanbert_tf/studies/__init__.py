"""Studies: a run for each configuration and seed, and a table of their results."""
