"""Files and directories: what may be replaced, whole or not at all, and what was in them.

Nothing here needs TensorFlow.
"""
