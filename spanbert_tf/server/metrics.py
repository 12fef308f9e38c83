"""What Prometheus reads, by TF Serving's names where it has them."""

import contextlib
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest

from spanbert_tf.server.errors import CODES, RequestError

# TF Serving's buckets of microseconds.
_MICROSECONDS = [10 * 1.8**power for power in range(33)]
_POWERS_OF_TWO = [2**power for power in range(17)]


class Metrics:
    """Counts the requests and the batches of a server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        # A `Counter` would have another name, with `_total` at its end.
        self._requests = Gauge(
            ":tensorflow:serving:request_count",
            "Requests of a model by their status.",
            ["model_name", "status"],
            registry=self._registry,
        )
        self._latency = Histogram(
            ":tensorflow:serving:request_latency",
            "Microseconds from the request to its answer.",
            ["model_name", "API", "entrypoint"],
            buckets=_MICROSECONDS,
            registry=self._registry,
        )
        self._rows = self._histogram("batch_rows", "Rows of a batch.")
        self._tokens = self._histogram("batch_tokens", "Estimated tokens of a batch.")

    def _histogram(self, name: str, description: str) -> Histogram:
        return Histogram(
            f"spanbert_tf:{name}",
            description,
            ["model_name"],
            buckets=_POWERS_OF_TWO,
            registry=self._registry,
        )

    @contextlib.contextmanager
    def request(self, model_name: str, api: str) -> Iterator[None]:
        """Counts a request, and the time that it takes.

        Args:
            model_name: name of a model that is served. A name that a client makes up would be a
                series of its own.
            api: what is asked for, such as `predict`.
        """
        start = time.perf_counter()
        status = "OK"
        try:
            yield
        except RequestError as error:
            status = CODES[error.status].grpc
            error.is_counted = True
            raise
        except Exception:
            status = CODES[500].grpc
            raise
        finally:
            microseconds = (time.perf_counter() - start) * 1e6
            self._requests.labels(model_name, status).inc()
            self._latency.labels(model_name, api, "REST").observe(microseconds)

    def refused(self, error: RequestError) -> None:
        """Counts a request that was refused before its model was known, under an empty name."""
        if not error.is_counted:
            error.is_counted = True
            self._requests.labels("", CODES[error.status].grpc).inc()

    def batches(self, model_name: str) -> Callable[[int, int], None]:
        """Returns a function that counts a batch by its rows and tokens."""

        def observe(num_rows: int, num_tokens: int) -> None:
            self._rows.labels(model_name).observe(num_rows)
            self._tokens.labels(model_name).observe(num_tokens)

        return observe

    def text(self) -> bytes:
        """Returns all of it in Prometheus' text format."""
        return generate_latest(self._registry)
