"""Whole ways: the quickstart, and a run for each configuration and seed with a table of results."""
