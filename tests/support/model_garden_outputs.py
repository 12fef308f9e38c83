"""Outputs of an encoder beside those of the Model Garden's own code."""

import numpy as np


def assert_equal(ours, theirs, mask):
    """Pooled outputs, and those of tokens; the mask is int [rows, positions]."""
    np.testing.assert_allclose(ours["pooled_output"], theirs["pooled_output"], atol=1e-5)
    real = mask.astype(bool)
    found, expected = (np.asarray(part["sequence_output"])[real] for part in (ours, theirs))
    np.testing.assert_allclose(found, expected, atol=1e-5)
