"""Offline preparation: from text files to TFRecords. No model code.

The modules in this folder are the doors: `python -m data_prep.X` is `spanbert-tf prepare X`.
"""
