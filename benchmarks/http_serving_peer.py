"""The `fill-mask` pipeline of `transformers` behind LitServe; run by `benchmarks.http_serving`."""

import sys
from typing import Any

import litserve
import torch
import transformers


class FillMask(litserve.LitAPI):
    """Answers `{"inputs": text}` with the five most probable fillings.

    Args:
        path: directory of the model.
        threads: threads of PyTorch.
        rows: largest number of texts of a batch.
        wait: seconds that a batch waits for more.
    """

    def __init__(self, path: str, threads: int, rows: int, wait: float) -> None:
        super().__init__(max_batch_size=rows, batch_timeout=wait, api_path="/answer")
        self._path = path
        self._threads = threads
        self._is_batched = rows > 1

    def setup(self, device: Any) -> None:
        """Loads the model in the worker."""
        torch.set_num_threads(self._threads)
        self._fill_mask = transformers.pipeline(
            "fill-mask", model=self._path, tokenizer=self._path, top_k=5
        )

    def decode_request(self, request: dict) -> str:
        """Returns the text."""
        return request["inputs"]

    def predict(self, texts: Any) -> Any:
        """Computes a batch, or a text."""
        options = {"tokenizer_kwargs": {"truncation": True}}
        if not self._is_batched:
            return self._fill_mask(texts, **options)
        found = self._fill_mask(texts, batch_size=len(texts), **options)
        return found if len(texts) > 1 else [found]  # the pipeline unpacks a list of one

    def encode_response(self, output: Any) -> Any:
        """Returns the answer."""
        return output


if __name__ == "__main__":
    model, port, threads, rows, wait = sys.argv[1:]
    api = FillMask(model, int(threads), int(rows), float(wait))
    litserve.LitServer(api, accelerator="cpu", timeout=600).run(
        host="127.0.0.1", port=int(port), generate_client_file=False, log_level="error"
    )
