"""Offline preparation: reads text files and writes TFRecords. It contains no model code.

`python -m data_prep X` is `spanbert-tf prepare X`. Each task's `prepare` command is defined in the
folder of the task.
"""
