"""Records at any scale: an Apache Beam pipeline from files of text to shards."""
