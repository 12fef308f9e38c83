"""Presets as this project writes and reads them: whole, described and checked."""
