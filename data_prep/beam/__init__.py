"""Records at any scale, from files of text to shards: by this machine or a runner of Beam."""
