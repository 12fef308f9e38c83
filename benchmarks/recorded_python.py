"""What `recorded_outputs` asks of the documented Python interface: masks, `fit`, exports, arrays.

B rows, S positions, K prediction slots.
"""

import json
import os
import pathlib

import numpy as np

_MASKED = {  # options of the public data set → the schemes that are read with them
    "default": {},
    "boundary": {"boundary_at_special_tokens": True, "max_span_targets": 3},
    "word": {"span_start": "word", "rate": 0.3},
    "uniform": {"random_tokens": "uniform", "mask_token_rate": 0.5, "random_token_rate": 0.5},
    "token": {"replacement_unit": "token", "geometric_p": 0.4, "max_span_length": 4},
}
_SCHEMES = ("subwords", "whole_words", "geometric_spans", "entities", "noun_phrases")
_BATCH, _EPOCHS = 16, 2


def masks(output: pathlib.Path) -> None:
    """Every feature of two epochs for each scheme, kind of records and options."""
    from spanbert_tf.data import pretraining_dataset

    for kind in ("prepare_annotated", "prepare_annotated_pair"):
        with open(f"{kind}/dataset_info.json", encoding="utf-8") as file:
            shards = json.load(file)["shards"]
        num_records = sum(shard["num_records"] for shard in shards if shard["split"] == "train")
        num_batches = -(-_EPOCHS * num_records // _BATCH)
        for scheme in _SCHEMES:
            for name, options in _MASKED.items():
                if name not in ("default", "boundary") and scheme != "geometric_spans":
                    continue
                dataset = pretraining_dataset(
                    kind,
                    batch_size=_BATCH,
                    masking={"scheme": scheme, **options},
                    seed=7,
                    segment_aware=name == "token" and not kind.endswith("pair"),
                    first_batch=3 if name == "uniform" else 0,
                )
                batches = list(dataset.take(num_batches).as_numpy_iterator())
                features = {
                    key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]
                }
                _save(output / f"{kind}-{scheme}-{name}.npz", features)
    other_draws = {"scheme": "entities", "other_draws": "whole_words"}
    held_out = pretraining_dataset(
        "prepare_annotated_pair", batch_size=8, split="validation", masking=other_draws
    )
    for number, batch in enumerate(held_out.as_numpy_iterator()):
        _save(output / f"validation-{number}.npz", batch)


def _save(path: pathlib.Path, arrays: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: np.asarray(value) for name, value in arrays.items()})


def fit(output: pathlib.Path) -> None:
    """The README's program, small; the history of its losses, its preset, what that fills in."""
    import keras

    import spanbert_tf
    import spanbert_tf.models

    keras.utils.set_random_seed(1)
    for name, records, options in (
        ("single", "prepare_single", {}),
        ("pair", "prepare_pair", {"use_next_sentence": True}),
    ):
        dataset = spanbert_tf.data.pretraining_dataset(records, batch_size=8, seed=1)
        tokenizer = spanbert_tf.models.SpanBertTokenizer(f"{records}/vocab.txt", lowercase=True)
        backbone = spanbert_tf.models.SpanBertBackbone(
            vocabulary_size=tokenizer.vocabulary_size(),
            num_layers=2,
            num_heads=2,
            hidden_dim=32,
            intermediate_dim=48,
            max_sequence_length=32,
        )
        model = spanbert_tf.models.SpanBertPretrainer(backbone, **options)
        optimizer = spanbert_tf.training.adamw(1e-2, warmup_steps=3, total_steps=30)
        model.compile(optimizer=optimizer)
        history = model.fit(dataset, steps_per_epoch=5, epochs=4, verbose=0).history
        (output / name).mkdir(parents=True)
        (output / name / "history.json").write_text(json.dumps(history, indent=1))
        model.save_to_preset(str(output / name / "preset"), tokenizer=tokenizer)
        masked_lm = spanbert_tf.models.SpanBertMaskedLM.from_preset(str(output / name / "preset"))
        filled = spanbert_tf.predictor(str(output / name / "preset"))
        (output / name / "filled.json").write_text(repr(filled("The [MASK] of London.")))
        arrays = masked_lm.preprocessor(["Ann sees the old house.", "Bob"])[0]
        _save(output / name / "logits.npz", {"logits": masked_lm(_without_masks(arrays))})


def _without_masks(x: dict) -> dict:
    """Every slot of the preprocessor reads position 1: which it masks is drawn anew each time."""
    import keras

    ids = keras.ops.ones_like(x["token_ids"]) * 7
    return {**x, "token_ids": ids, "mask_positions": keras.ops.ones_like(x["mask_positions"])}


def fit_tasks(output: pathlib.Path) -> None:
    """The docstrings' programs: each task's class on raw inputs, from the encoder's preset."""
    import keras
    import tensorflow as tf

    from spanbert_tf import models

    preset = "pretrain_single/preset"
    relation = {
        "text": ["Ann lives in Berlin .", "Bob sees Tom ."],
        "subject": [[0, 3], [0, 3]],
        "object": [[13, 19], [9, 12]],
        "subject_type": ["PERSON", "PERSON"],
        "object_type": ["CITY", "PERSON"],
    }
    texts = ["Ann has a cat. She likes it.", "Bob slept. He was old."]
    clusters = [[[(0, 3), (15, 18)], [(8, 13), (25, 27)]], [[(0, 3), (11, 13)]]]
    ragged = tf.ragged.constant
    labels = {"labels": ["O", "B-PER", "I-PER"]}
    relations = {"labels": ["no_relation", "lives_in"]}
    runs = {
        "classifier": (models.SpanBertTextClassifier, {"num_classes": 2}, texts, [1, 0]),
        "regression": (models.SpanBertTextClassifier, {"num_classes": 1}, texts, [0.5, 2.0]),
        "answerer": (
            *(models.SpanBertQuestionAnswerer, {}),
            *((["Who sat?", "Who ran?"], ["The cat sat.", "The dog sat."]), ["The cat", ""]),
        ),
        "tokens": (
            *(models.SpanBertTokenClassifier, labels),
            *(ragged([["Ann", "sat"], ["Bob"]]), ragged([[1, 0], [1]])),
        ),
        "relations": (models.SpanBertRelationClassifier, relations, relation, [0, 1]),
        "coreference": (models.SpanBertCoreferenceResolver, {}, texts, clusters),
    }
    for name, (kind, options, x, y) in runs.items():
        keras.utils.set_random_seed(1)
        model = kind.from_preset(preset, **options)
        model.compile()
        size = 1 if name == "coreference" else 2
        history = model.fit(x, y, batch_size=size, epochs=3, verbose=0).history
        output.mkdir(exist_ok=True)
        (output / f"{name}.json").write_text(json.dumps(history, indent=1))
        _save(output / f"{name}.npz", {f"{n}": w for n, w in enumerate(model.get_weights())})


def presets(output: pathlib.Path) -> None:
    """The arrays of the presets by name, as the public classes load them."""
    from spanbert_tf import models

    for run in sorted(pathlib.Path().glob("pretrain_*/preset")):
        model = models.SpanBertMaskedLM.from_preset(str(run))
        arrays = {weight.path: weight.numpy() for weight in model.weights}
        _save(output / f"{run.parent.name}.npz", arrays)


_BY_NAME = {  # of an export's inputs
    "question": ["Who has the cat?", "Where is Tom?"],
    "context": ["Ann has the cat. Bob visited the old house near London. " * 3, "Tom sleeps."],
    "text": ["Ann lives in Berlin . She sees the old cat .", "Tom has the owl in London ."],
    "text_pair": ["Bob sleeps in the old house.", "It is green."],
    "texts": ["The [MASK] of London .", "Ann [MASK] the [MASK] ."],
    "subject": [[0, 3], [0, 3]],
    "object": [[13, 19], [12, 15]],
    "subject_type": ["PERSON", "PERSON"],
    "object_type": ["CITY", "ORGANIZATION"],
    "speakers": [["Ann"], ["Bob"]],
}


def exported(output: pathlib.Path) -> None:
    """Signatures of each export and their outputs, as a server has them: without this project."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 - registers its operations

    output.mkdir(parents=True)
    for version in sorted(pathlib.Path().glob("export_*/[0-9]")):
        name = f"{version.parent.name}-{version.name}"
        loaded, described, outputs = tf.saved_model.load(str(version)), {}, {}
        for key, signature in sorted(loaded.signatures.items()):
            taken, returned = signature.structured_input_signature[1], signature.structured_outputs
            described[key] = {
                side: {each: [spec.dtype.name, str(spec.shape)] for each, spec in specs.items()}
                for side, specs in (("inputs", taken), ("outputs", returned))
            }
            x = {each: _export_input(each, spec) for each, spec in taken.items()}
            for each, value in signature(**x).items():
                outputs[f"{key}/{each}"] = value.numpy()
        (output / f"{name}.json").write_text(json.dumps(described, indent=1, sort_keys=True))
        strings = {key: value for key, value in outputs.items() if value.dtype == object}
        outputs |= {key: value.astype("S") for key, value in strings.items()}
        _save(output / f"{name}.npz", outputs)


def _export_input(name: str, spec: object) -> object:
    import tensorflow as tf

    if name in _BY_NAME:
        return tf.constant(_BY_NAME[name], spec.dtype)
    shape = [size or (2, 12, 3)[axis] for axis, size in enumerate(spec.shape)]
    if name == "padding_mask":
        return tf.ones(shape, spec.dtype)
    if name == "token_ids":
        return tf.cast(tf.reshape(tf.range(tf.reduce_prod(shape)) % 40 + 5, shape), spec.dtype)
    return tf.zeros(shape, spec.dtype) if spec.dtype != tf.string else tf.fill(shape, "")


def predictors(output: pathlib.Path) -> None:
    """`spanbert_tf.predictor` of each preset on the raw inputs of its task."""
    import spanbert_tf

    output.mkdir(parents=True)
    raw = {"squad": "squad", "texts": "text", "pairs": "pair", "tacred": "relation"}
    for name, kind in {**raw, "coref": "coref", "ner": "text"}.items():
        predict = spanbert_tf.predictor(f"finetune_{name}/preset")
        with open(os.path.join(os.environ["RECORDED_INPUT"], f"raw_{kind}.jsonl")) as file:
            lines = [json.loads(line) for line in file]
        found = {"repr": repr(predict), "answers": predict(lines), "one": predict(lines[0])}
        (output / f"{name}.json").write_text(json.dumps(found, indent=1, default=repr))
