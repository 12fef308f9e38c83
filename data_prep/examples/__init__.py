"""From the examples of a task to packed rows: formats, checks and one writer."""
