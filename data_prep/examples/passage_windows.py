"""Windows that slide over a passage which is longer than a row."""

import numpy as np


def window_starts(num_tokens: int, length: int, stride: int) -> np.ndarray:
    """The first token of each window.

    Args:
        num_tokens: tokens of the passage, at least 1.
        length: tokens of a window at most.
        stride: tokens from one window to the next.

    Returns:
        int64 [W]; the last window is the first one that reaches the passage's end.
    """
    num_windows = 1 + -(-max(num_tokens - length, 0) // stride)
    return np.arange(num_windows) * stride


def has_most_context(starts: np.ndarray, num_tokens: int, length: int) -> np.ndarray:
    """In which window a token has the most text around it.

    A token stands in several windows; predictions count only in the window where the smaller of
    the text before and after it is largest; of equal ones, in the longer window, then the first
    (Devlin et al., 2019, code for SQuAD).

    Args:
        starts: int [W], from `window_starts`.
        num_tokens: tokens of the passage, T.
        length: tokens of a window at most.

    Returns:
        bool [W, T]; false for tokens that are not in a window.
    """
    tokens = np.arange(num_tokens)
    ends = np.minimum(starts + length, num_tokens)[:, np.newaxis]  # [W, 1], exclusive
    before = tokens - starts[:, np.newaxis]  # [W, T]
    after = ends - 1 - tokens
    score = np.minimum(before, after) + 0.01 * (ends - starts[:, np.newaxis])
    score = np.where((before >= 0) & (after >= 0), score, -1.0)
    return np.arange(len(starts))[:, np.newaxis] == score.argmax(axis=0)
