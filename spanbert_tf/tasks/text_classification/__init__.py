"""Classification of texts and pairs of texts, and regression: GLUE, and anyone's own data."""
