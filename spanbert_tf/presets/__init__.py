"""Presets as this project writes and reads them: complete, described and checked."""
