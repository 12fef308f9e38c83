"""What encoders of different vocabularies lose on the same text, which none of them has learned.

    python -m benchmarks.adapting --input 'held_out/*' PRESET …

`adapt` compares two encoders on a part of the text whose words it has counted. Here any number of
presets, each with a trained masked-LM head, are compared on a text that was kept from all of them:
the same words of the same rows are masked for all. A line for each has the pieces of a word, and
the loss a character in nats.
"""

import os
import tempfile

import click
import keras

from benchmarks.machine import describe_machine
from data_prep.beam.writing import write_pretraining_records
from spanbert_tf.models import SpanBertMaskedLM
from spanbert_tf.presets.preset import Preset
from spanbert_tf.studies.held_out_text import (
    loss_per_character,
    pieces_per_word,
    read_held_out_text,
)

_SHARE = 0.5  # of the text, of which the first rows are measured


@click.command()
@click.option("--input", "pattern", required=True, help="Text that no preset was trained on.")
@click.option("--sequence-length", default=256, show_default=True)
@click.argument("presets", nargs=-1, required=True)
def main(pattern: str, sequence_length: int, presets: tuple[str, ...]) -> None:
    print(describe_machine(("tensorflow", "keras")), flush=True)
    opened = [Preset(name) for name in presets]
    with tempfile.TemporaryDirectory() as directory:
        records = os.path.join(directory, "records")
        write_pretraining_records(
            [pattern],
            preset=presets[0],
            output=records,
            sequence_length=sequence_length,
            validation_fraction=_SHARE,
            follow_links=True,
        )
        text = read_held_out_text(records, [preset.tokenizer for preset in opened])
    print(f"{len(text.rows)} rows, {text.num_masked_characters:,} masked characters", flush=True)
    for preset in opened:
        pieces = pieces_per_word(text, preset.tokenizer)
        model = preset.trained_task(SpanBertMaskedLM)
        loss = loss_per_character(text, model, preset.tokenizer)
        print(f"{preset}: pieces a word {pieces:.4f}, loss a character {loss:.4f}", flush=True)
        del model
        keras.backend.clear_session()


if __name__ == "__main__":
    main()
