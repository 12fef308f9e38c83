"""The process that looks after a worker."""

import io
import sys
import types

from spanbert_tf.supervision import _Worker


def test_a_worker_is_read_also_where_nobody_reads_what_it_says(monkeypatch):
    """As of `2>&1 | tee log` whose `tee` was ended; unread, the worker would wait for ever."""

    class Closed(io.RawIOBase):
        def write(self, data):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", types.SimpleNamespace(buffer=Closed(), flush=Closed().flush))
    lines = iter([b"one\n", b"spanbert-tf: two\n", b"three\n"])
    worker = _Worker.__new__(_Worker)
    worker.process, worker._shows_all = types.SimpleNamespace(stderr=lines), False
    worker._pass_on()
    assert list(lines) == [] and not worker.has_said_why
