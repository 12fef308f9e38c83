"""Vocabularies, word pieces and where they stand in a text."""
