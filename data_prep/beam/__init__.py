"""Writes pre-training records from text files, on this machine or on a runner of Apache Beam."""
