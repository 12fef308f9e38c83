"""One script for each figure in docs/benchmarks.md; each measures a peer in the same run."""
