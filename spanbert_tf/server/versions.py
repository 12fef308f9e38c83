"""Finds the models to serve, and loads a new version while the old one answers."""

import asyncio
import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from spanbert_tf.config.run import PRESET
from spanbert_tf.conversion.converted_presets import converted_preset
from spanbert_tf.errors import BadInputError, SpanBertError, reason
from spanbert_tf.server.batching import Worker
from spanbert_tf.server.errors import RequestError
from spanbert_tf.server.metrics import Metrics
from spanbert_tf.server.model import Model
from spanbert_tf.serving.loading import SAVED_MODEL_FILE, is_version, versions_of
from spanbert_tf.tasks.prediction import export_preset
from spanbert_tf.terminal import print_line

POLL_SECONDS = 2.0


class Source(NamedTuple):
    """A model to serve.

    Attributes:
        name: name of the model.
        directory: directory with a folder for each version.
        version: the only version to serve; `None`: the highest there is.
    """

    name: str
    directory: str
    version: str | None = None


class _Found(NamedTuple):
    """A version on disk. It is another one if somebody exported it anew under the same number."""

    path: str
    modified: int
    inode: int


def find_sources(paths: Sequence[str], workspace: str, top_k: int) -> list[Source]:
    """Finds the models that a user names.

    Args:
        paths: each is the directory of an export, one of its versions, a `models.config`, a preset,
            or a directory of a BERT of Hugging Face.
        workspace: an empty directory, to which presets are exported.
        top_k: largest number of answers to an input of a preset.

    Raises:
        BadInputError: a path is none of these, or two models have the same name.
    """
    sources: list[Source] = []
    presets: dict[str, str] = {}  # path → where it is exported to
    for path in paths:
        found = _exported_sources(path)
        if not found:
            name = _name_of_preset(path)
            presets[path] = os.path.join(workspace, name)
            found = [Source(name, presets[path])]
        sources += found
    names = [source.name for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise BadInputError(f"{name}: two models have this name; rename the folder of one")
    for path, output in presets.items():
        print_line(f"{path}: is exported first")
        with contextlib.redirect_stdout(io.StringIO()):  # lines about a directory that goes
            export_preset(converted_preset(path), output, top_k=top_k)
    return sources


def _exported_sources(path: str) -> list[Source]:
    """The models at a path that are exported; none if it may be a preset."""
    if os.path.isfile(path):
        return _read_models_config(path)
    directory = os.path.abspath(path)
    name = os.path.basename(directory)
    if is_version(directory):
        parent = os.path.dirname(directory)
        return [Source(os.path.basename(parent), parent, version=name)]
    if os.path.isdir(directory) and versions_of(directory):
        return [Source(name, directory)]
    return []


def _name_of_preset(path: str) -> str:
    """The name of a preset's directory, or that of its run."""
    directory = os.path.abspath(path)
    name = os.path.basename(directory)
    if name == PRESET:
        return os.path.basename(os.path.dirname(directory))
    return name


def _read_models_config(path: str) -> list[Source]:
    """Reads TF Serving's `models.config`.

    Raises:
        BadInputError: it cannot be read, or names what cannot be served.
    """
    from google.protobuf import text_format

    try:
        from tensorflow_serving.config import model_server_config_pb2
    except ModuleNotFoundError as error:
        raise BadInputError(
            f"{path}: reading it needs pip install 'spanbert_tf[serving]'; or name the directories"
        ) from error
    config = model_server_config_pb2.ModelServerConfig()
    try:
        with open(path, encoding="utf-8") as file:
            text_format.Parse(file.read(), config)
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise BadInputError(f"{path}: is no models.config ({reason(error)})") from error
    sources = [_configured_source(path, entry) for entry in config.model_config_list.config]
    if not sources:
        raise BadInputError(f"{path}: names no model")
    return sources


def _configured_source(path: str, entry: Any) -> Source:
    """Returns the model of an entry of a `models.config`.

    `export` writes `/models/NAME` to it, where a container has the model. Where no such directory
    exists, the model is the one that the file lies in, if it has this name.

    Args:
        path: path of the file.
        entry: a message `ModelConfig`.

    Raises:
        BadInputError: the directory or its versions are missing, or several are to be served.
    """
    place = f"{path}: {entry.base_path}"
    directory = entry.base_path
    own = os.path.dirname(os.path.abspath(path))
    if os.path.basename(os.path.normpath(directory)) == os.path.basename(own):
        directory = directory if os.path.isdir(directory) else own
    if not os.path.isdir(directory):
        raise BadInputError(f"{place}: is no directory of this machine; correct its base_path")
    if not versions_of(directory):
        raise BadInputError(f"{place}: holds no version of an export")
    policy = entry.model_version_policy
    versions = policy.specific.versions
    if policy.HasField("all") or max(policy.latest.num_versions, len(versions)) > 1:
        raise BadInputError(f"{place}: names several versions, and one is served at a time")
    return Source(entry.name, directory, version=str(versions[0]) if versions else None)


class Version:
    """A version that is loaded, with the thread that computes it.

    Args:
        model: the model.
        worker: its thread.
    """

    def __init__(self, model: Model, worker: Worker) -> None:
        self.model = model
        self.worker = worker
        self._num_users = 0
        self._is_free = asyncio.Event()
        self._is_free.set()

    @contextlib.contextmanager
    def used(self) -> Iterator["Version"]:
        """Keeps the thread until the end of a request, if another version is taken up meanwhile."""
        self._num_users += 1
        self._is_free.clear()
        try:
            yield self
        finally:
            self._num_users -= 1
            if not self._num_users:
                self._is_free.set()

    async def close(self) -> None:
        """Answers what was begun, and ends the thread. No more requests may begin."""
        await self._is_free.wait()
        await self.worker.close()


class ServedModel:
    """A model, of which one version answers at a time.

    Args:
        source: where it lies.
        max_batch_tokens: budget of a batch.
        metrics: where batches are counted.
    """

    def __init__(self, source: Source, max_batch_tokens: int, metrics: Metrics) -> None:
        self.source = source
        self._max_batch_tokens = max_batch_tokens
        self._metrics = metrics
        self._found: _Found | None = None
        self._version: Version | None = None
        self._last_problem = ""

    @property
    def version(self) -> Version:
        """The version that answers.

        Raises:
            RequestError: none is loaded yet.
        """
        if self._version is None:
            raise RequestError(503, f"{self.source.name} is not loaded")
        return self._version

    @property
    def model(self) -> Model:
        """The model of the version that answers."""
        return self.version.model

    async def refresh(self) -> None:
        """Loads the newest version if it is not the one that answers, and closes the old one.

        Raises:
            BadInputError: there is no version, or it cannot be loaded. The old one goes on.
        """
        found = self._newest()
        if found == self._found:
            return
        model = await asyncio.to_thread(_load, self.source.name, found.path)
        budget = min(self._max_batch_tokens, model.pipeline.max_batch_tokens)
        worker = Worker(model.compute, budget, self._metrics.batches(self.source.name))
        old = self._version
        self._version = Version(model, worker)
        self._found = found
        self._last_problem = ""
        print_line(f"{self.source.name}: serves version {model.version}, {model.pipeline.name}")
        if old is not None:
            await old.close()

    async def watch(self) -> None:
        """Takes up new versions until it is cancelled. What cannot be loaded is printed once."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self.refresh()
            except (SpanBertError, OSError) as error:
                if str(error) != self._last_problem:
                    self._last_problem = str(error)
                    print_line(f"{self.source.name}: goes on as it is: {error}")

    async def close(self) -> None:
        """Finishes what was asked for."""
        if self._version is not None:
            await self._version.close()

    def _newest(self) -> _Found:
        """Finds the version to serve.

        Raises:
            BadInputError: there is none.
        """
        directory = self.source.directory
        try:
            version = self.source.version or versions_of(directory)[-1]
            path = os.path.join(directory, version)
            state = os.stat(os.path.join(path, SAVED_MODEL_FILE))
        except (OSError, IndexError) as error:
            raise BadInputError(f"{directory}: holds no version of an export") from error
        return _Found(path, state.st_mtime_ns, state.st_ino)


def _load(name: str, path: str) -> Model:
    """Loads a version and answers its example.

    Raises:
        BadInputError: it is damaged, or not complete yet. TensorFlow has many errors for that.
    """
    try:
        model = Model(name, path)
        model.warm_up()
    except (SpanBertError, OSError):
        raise
    except Exception as error:
        raise BadInputError(f"{path}: cannot be loaded ({reason(error)})") from error
    return model


class Models:
    """All models of a server.

    Args:
        sources: where they lie.
        max_batch_tokens: budget of a batch.
        metrics: where requests and batches are counted.
    """

    def __init__(self, sources: Sequence[Source], max_batch_tokens: int, metrics: Metrics) -> None:
        self.metrics = metrics
        self.by_name = {
            source.name: ServedModel(source, max_batch_tokens, metrics) for source in sources
        }
        self._watchers: list[asyncio.Task] = []

    def find(self, name: str, version: str | None = None) -> ServedModel:
        """Returns a model that answers.

        Raises:
            RequestError: there is no such model, or another version answers.
        """
        served = self.by_name.get(name)
        if served is None:
            raise RequestError(404, f"Servable not found for request: Latest({name})")
        if version is not None and version != served.model.version:
            raise RequestError(404, f"Servable not found for request: Specific({name}, {version})")
        return served

    async def start(self) -> None:
        """Loads all models, and watches for new versions.

        Raises:
            BadInputError: one cannot be loaded.
        """
        for served in self.by_name.values():
            await served.refresh()
        for served in self.by_name.values():
            self._watchers.append(asyncio.create_task(served.watch()))

    async def close(self) -> None:
        """Finishes what was asked for, and ends the threads."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        for served in self.by_name.values():
            await served.close()
