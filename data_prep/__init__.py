"""Reads text files and writes the records and vocabularies of pre-training.

`python -m data_prep X` is the same command as `spanbert-tf prepare X`. The `prepare` command of a
task is defined in the folder of the task.
"""
