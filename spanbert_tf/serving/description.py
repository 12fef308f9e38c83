"""What an export says of itself: all that its answers need beside the SavedModel.

`export` writes it to `assets.extra/pipeline.json`. The vocabulary lies beside it, as the export's
README needs it there.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.output import write_text
from spanbert_tf.files.text_files import parse_json
from spanbert_tf.text.vocabulary import TextRules, load_vocabulary

EXTRA_ASSETS = "assets.extra"  # TF Serving only reads warm-up requests from this folder
PIPELINE_FILE = "pipeline.json"
VOCABULARY_FILE = "assets/tokenizer/vocabulary.txt"


@dataclasses.dataclass(frozen=True)
class Description:
    """What checks of raw inputs and answers to them need of a model.

    Attributes:
        task: name of the pipeline, such as `"named_entities"`.
        fields: names of the texts that a raw input must have.
        labels: names of the classes, in the order of their numbers; empty without classes.
        settings: what else the answers of the task depend on, such as `has_unanswerable`.
        signature: name of the signature that answers texts; `None` if the export takes only ids.
        top_k: largest number of answers to an input.
        sequence_length: largest number of positions of a row.
        example: an input.
        text_rules: what is done to text before it is split into word pieces.
        vocabulary: entries in order of their ids.
    """

    task: str
    fields: tuple[str, ...]
    labels: tuple[str, ...]
    settings: Mapping[str, bool | int | float | str]
    signature: str | None
    top_k: int
    sequence_length: int
    example: Mapping[str, Any]
    text_rules: TextRules
    vocabulary: Sequence[str] = ()

    @functools.cached_property
    def token_ids(self) -> Mapping[str, int]:
        """The id of each entry of the vocabulary."""
        return {token: index for index, token in enumerate(self.vocabulary)}


def write_description(extra_assets: str, description: Description) -> None:
    """Writes `pipeline.json`.

    Args:
        extra_assets: the folder `assets.extra` of an export.
        description: what is written, except for the vocabulary.
    """
    content = dataclasses.asdict(description)
    del content["vocabulary"]
    content["text_rules"] = description.text_rules._asdict()
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_text(os.path.join(extra_assets, PIPELINE_FILE), text)


def read_description(export: str) -> Description:
    """Reads what an export says of itself.

    Args:
        export: directory of a version of an export.

    Raises:
        BadInputError: it was not written by `export`, or is damaged.
    """
    extra_assets = os.path.join(export, EXTRA_ASSETS)
    path = os.path.join(extra_assets, PIPELINE_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"{path}: cannot be read; export the model again with `spanbert-tf export`"
        ) from error
    description = parse_json(text, Description, path)
    vocabulary = load_vocabulary(os.path.join(extra_assets, VOCABULARY_FILE))
    return dataclasses.replace(description, vocabulary=vocabulary)
