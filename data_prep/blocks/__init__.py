"""Makes the blocks, pairs and annotations of pre-training records from sentences."""
