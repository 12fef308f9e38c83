"""One script for each figure that README quotes; each measures a peer in the same run."""
