"""`serve`: an HTTP server of exported models."""
