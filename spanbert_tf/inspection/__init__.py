"""What is in a set of pre-training records, for people to look at."""
