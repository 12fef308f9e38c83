"""Runs of this process that a signal meets at a known step."""

import contextlib
import os
import signal

import pytest

from spanbert_tf.training.metrics_log import MetricsLog


@contextlib.contextmanager
def terminated_after(step):
    """Sends this process a SIGTERM when a run has logged a step, counted from 1."""
    log_step = MetricsLog.on_step_end

    def log_and_terminate(self, done, model):
        log_step(self, done, model)
        if done == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricsLog, "on_step_end", log_and_terminate)
        yield
