"""Offline preparation: from text files to TFRecords. No model code.

`python -m data_prep X` is `spanbert-tf prepare X`; the commands of tasks lie in their folders.
"""
