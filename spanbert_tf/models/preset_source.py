"""`from_preset` says what it was given, where that is no preset, in the words of the commands."""

from spanbert_tf.files.directory_kinds import refuse_no_preset


class LoadsPresets:
    """Base of backbone, tokenizer, tasks and preprocessors; name it before KerasHub's class."""

    @classmethod
    def from_preset(cls, preset: str, *args: object, **kwargs: object) -> object:
        """Loads a preset.

        Args:
            preset: directory, or another name that KerasHub knows.
            *args: as KerasHub's class takes them.
            **kwargs: as well.

        Raises:
            BadInputError: what lies there is something else, such as a model of Hugging Face.
        """
        refuse_no_preset(preset)
        return super().from_preset(preset, *args, **kwargs)
