"""The row length of a new preprocessor for a preset that was saved without one."""

from keras_hub.src.utils import preset_utils

from spanbert_tf.models.preset_source import LoadsPresets


class LengthOfPreset(LoadsPresets):
    """Packs rows as long as those of the preset's own preprocessor, or as its encoder reads.

    Name it before KerasHub's class, whose default is 512 whatever the encoder reads.
    """

    @classmethod
    def _add_missing_kwargs(cls, loader: preset_utils.PresetLoader, kwargs: dict) -> dict:
        kwargs = super()._add_missing_kwargs(loader, kwargs)
        encoder = loader.config.get("config", {})
        lengths = [_saved_length(loader.preset), encoder.get("max_sequence_length")]
        known = [length for length in lengths if length is not None]
        return {"sequence_length": known[0], **kwargs} if known else kwargs


def _saved_length(preset: str) -> int | None:
    name = preset_utils.PREPROCESSOR_CONFIG_FILE
    if not preset_utils.check_file_exists(preset, name):
        return None
    return preset_utils.load_json(preset, name)["config"].get("sequence_length")
