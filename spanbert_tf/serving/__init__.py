"""Exports for TF Serving."""
