"""The weights that the encoder of a run began with, as a share of those that it ends with."""

import os
import zipfile

import numpy as np

from spanbert_tf.errors import BadInputError, ConfigurationError
from spanbert_tf.files.writing import whole_file
from spanbert_tf.models import SpanBertBackbone

INITIAL_ENCODER = "initial_encoder.npz"
_KEY = "training.initial_encoder_share"


def keep_initial_encoder(encoder: SpanBertBackbone, run: str) -> None:
    """Writes the weights into the directory of a run, which does not read the preset again.

    Args:
        encoder: before the first step.
        run: directory of the run.

    Raises:
        OSError: they cannot be written.
    """
    arrays = [np.asarray(value) for value in encoder.get_weights()]
    path = os.path.join(run, INITIAL_ENCODER)
    # Given a path, NumPy would add a suffix to it.
    with whole_file(path) as unfinished, open(unfinished, "wb") as file:
        np.savez(file, *arrays)
        file.flush()
        os.fsync(file.fileno())


def check_initial_encoder(share: float, run: str, preset: str | None, *, has_begun: bool) -> None:
    """Checks, before the first step, that there will be weights to mix with after the last one.

    Args:
        share: `training.initial_encoder_share`.
        run: directory of the run.
        preset: the run's `--initial-preset`, if it has one.
        has_begun: whether the run goes on.

    Raises:
        ConfigurationError: the run begins with random weights.
        BadInputError: the run goes on, and the file is missing or damaged.
    """
    if not share:
        return
    if not has_begun and preset is None:
        raise ConfigurationError(
            f"{_KEY} is {share} and the encoder begins at random; give --initial-preset, or set "
            f"{_KEY}=0"
        )
    if has_begun:
        _check_file(os.path.join(run, INITIAL_ENCODER))


def _check_file(path: str) -> None:
    """Reads all of the file, whose parts have checksums."""
    if not os.path.exists(path):
        raise BadInputError(f"{path}: is missing; set {_KEY}=0 to go on without it")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (OSError, EOFError, zipfile.BadZipFile) as error:
        damaged = error
    if damaged:
        raise BadInputError(f"{path}: is damaged ({damaged}); set {_KEY}=0 to go on without it")


def mix_with_initial(encoder: SpanBertBackbone, run: str, share: float) -> None:
    """Moves an encoder back towards the weights that it began with.

    Each weight becomes `share · before + (1 - share) · now`: the weight-space ensemble of WiSE-FT
    (Wortsman et al. 2022, section 3), with `1 - share` as its mixing coefficient.

    Args:
        encoder: as trained.
        run: directory of the run, for which `keep_initial_encoder` was called.
        share: from 0 (stays as it is) to 1 (as it began).

    Raises:
        BadInputError: the file is missing or damaged.
    """
    path = os.path.join(run, INITIAL_ENCODER)
    _check_file(path)
    trained = encoder.get_weights()
    with np.load(path, allow_pickle=False) as file:
        initial = [file[f"arr_{number}"] for number in range(len(trained))]
    pairs = zip(initial, trained, strict=True)
    encoder.set_weights([share * before + (1 - share) * now for before, now in pairs])
