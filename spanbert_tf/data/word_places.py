"""Words as a text, and where they stand in it. Nothing here needs TensorFlow."""

from collections.abc import Sequence


def join_words(words: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """The words with a space between them; first character of each, and the one after its last."""
    places, start = [], 0
    for word in words:
        places.append((start, start + len(word)))
        start += len(word) + 1
    return " ".join(words), places
