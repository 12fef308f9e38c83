"""Reads, checks and writes files and directories.

Nothing here needs TensorFlow.
"""
