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


def windows_with_most_context(starts: np.ndarray, num_tokens: int, length: int) -> np.ndarray:
    """The window in which each token has the most text around it.

    A token stands in several windows; predictions count only in the window where the smaller of
    the text before and after it is largest; of equal ones, in the longer window, then the first
    (Devlin et al., 2019, code for SQuAD).

    Args:
        starts: int [W], from `window_starts`.
        num_tokens: tokens of the passage, T.
        length: tokens of a window at most.

    Returns:
        int64 [T], numbers of windows.
    """
    tokens = np.arange(num_tokens)
    last = np.searchsorted(starts, tokens, side="right") - 1  # that a token stands in
    best, best_score = last, np.full(num_tokens, -1.0)
    # A token is in few windows, however long the passage; from the last one back to the first.
    for back in range(_num_overlapping(starts, length)):
        window = np.maximum(last - back, 0)
        ends = np.minimum(starts[window] + length, num_tokens)  # exclusive
        before, after = tokens - starts[window], ends - 1 - tokens
        score = np.minimum(before, after) + 0.01 * (ends - starts[window])
        is_better = (after >= 0) & (score >= best_score)
        best = np.where(is_better, window, best)
        best_score = np.where(is_better, score, best_score)
    return best


def _num_overlapping(starts: np.ndarray, length: int) -> int:
    """How many windows a token stands in at most."""
    stride = int(starts[1]) if len(starts) > 1 else length
    return -(-length // stride)
