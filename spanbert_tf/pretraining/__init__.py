"""Pre-training: its batches, its model, and a run from records to a preset."""
