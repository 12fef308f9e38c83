"""Pre-training: from records to a preset, and the inspection of records."""
