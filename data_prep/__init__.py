"""Offline preparation: from text files to TFRecords. No model code."""
