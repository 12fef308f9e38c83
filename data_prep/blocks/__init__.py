"""From sentences to the blocks, pairs and annotations of pre-training records."""
