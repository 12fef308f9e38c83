"""A server in a thread of this process, asked over connections of a network."""

import asyncio
import socket
import threading
import time

import requests

from spanbert_tf.server.application import create_application, make_server
from spanbert_tf.server.metrics import Metrics
from spanbert_tf.server.versions import Models

MAX_BODY = 2_000_000
WAIT = 60  # seconds; for what must come


class RunningServer:
    """The server."""

    def __init__(self, sources, max_batch_tokens, key=None):
        self.models = Models(sources, max_batch_tokens, Metrics())
        application = create_application(self.models, "127.0.0.1", key, MAX_BODY)
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        self.server = make_server(application)

        async def run():
            async with application.router.lifespan_context(application):
                await self.server.serve([listener])

        self.thread = threading.Thread(target=asyncio.run, args=[run()])
        self.thread.start()
        wait_for(lambda: self.server.started)

    def close(self):
        self.server.should_exit = True
        self.thread.join()

    def worker(self, name):
        return self.models.find(name).version.worker

    def ask(self, model, inputs):
        body = {"model": model, "inputs": inputs}
        return requests.post(f"{self.url}/answer", json=body, timeout=WAIT)

    def connect(self):
        return socket.create_connection(self.address, WAIT)


def wait_for(condition):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)
