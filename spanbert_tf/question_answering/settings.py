"""How the answers of a preset are chosen; saved with it."""

import dataclasses
import json
import os
from collections.abc import Mapping

from keras_hub.src.utils import preset_utils

from spanbert_tf.errors import BadInputError

SETTINGS_FILE = "question_answering.json"


@dataclasses.dataclass(frozen=True)
class AnsweringSettings:
    """What a preset says of how its answers are chosen.

    Attributes:
        max_answer_tokens: longest answer.
        num_candidates: possible answers that are kept for each question.
        stride: tokens from one window of a passage to the next.
        has_unanswerable: whether questions may have no answer.
        null_threshold: null odds above which a question counts as unanswerable.
    """

    max_answer_tokens: int = 30
    num_candidates: int = 20
    stride: int = 128
    has_unanswerable: bool = False
    null_threshold: float = 0.0

    def with_threshold(self, scores: Mapping[str, float]) -> "AnsweringSettings":
        """The same with the threshold that `score_answers` found, if it looked for one."""
        threshold = scores.get("null_threshold", self.null_threshold)
        return dataclasses.replace(self, null_threshold=threshold)

    def save(self, directory: str) -> None:
        """Writes `question_answering.json` into the directory of a preset."""
        with open(os.path.join(directory, SETTINGS_FILE), "w", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(self), indent=1) + "\n")


def load_settings(preset: str) -> AnsweringSettings:
    """Reads those of a preset; the defaults if it has none.

    Raises:
        BadInputError: the file is damaged.
    """
    if not preset_utils.check_file_exists(preset, SETTINGS_FILE):
        return AnsweringSettings()
    try:
        return AnsweringSettings(**preset_utils.load_json(preset, SETTINGS_FILE))
    except (ValueError, TypeError) as error:
        raise BadInputError(
            f"{preset}: {SETTINGS_FILE} is damaged ({error}); copy the preset again"
        ) from error
