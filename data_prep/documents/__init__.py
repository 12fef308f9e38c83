"""Documents with coreferent mentions: their formats, and rows of them."""
