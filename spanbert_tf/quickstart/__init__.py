"""The whole way from text to a served model, at a small size."""
