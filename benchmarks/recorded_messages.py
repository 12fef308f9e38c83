"""Commands that must refuse: bad values, files, records, presets and pairs of them."""

# ruff: noqa: E501 - a command a line

from benchmarks.recorded_commands import ENCODER, LENGTH, SMALL, TUNE, VOCABULARY

_LENGTH = "data.sequence_length=32"
_SETTINGS = {  # of `pretrain`, one or two keys each
    "unknown key": "training.stepz=5",
    "wrong type": "training.steps=many",
    "batch of none": "training.batch_size=0",
    "rate above 1": "masking.rate=1.5",
    "unknown scheme": "masking.scheme=spans",
    "start of subwords": "masking.scheme=subwords masking.span_start=word",
    "other draws of spans": "masking.other_draws=whole_words",
    "rates above 1": "masking.mask_token_rate=0.8 masking.random_token_rate=0.3",
    "heads do not divide": "model.num_heads=7",
    "two clips": "optimizer.clipnorm=1.0",
    "accumulation does not divide": "training.batch_size=8 training.accumulation_steps=3",
    "steps beyond the schedule": "training.steps=2000 training.schedule_steps=10",
    "unknown precision": "training.precision=int8",
    "unknown strategy": "training.strategy=many",
    "unknown positions": "model.position_embeddings=rotary",
    "negative seed": "training.seed=-1",
    "no value": "training.seed",
    "length beyond the model": "data.sequence_length=4096",
    "span longer than none": "masking.max_span_length=0",
}
_CONFIGS = ("spanbert_huge", "bad/indent.yaml", "bad/key.yaml", "bad/type.yaml", "bad/twice.yaml")
_CONFIGS += ("bad/no_base.yaml", "bad/circle.yaml", "bad/section.yaml", "bad/tag.yaml", "squad_v1")
_TUNINGS = {
    "unknown key": "training.batchsize=4",
    "patience of none": "training.early_stopping_patience=0",
    "grid of none": "grid.batch_sizes=[]",
    "stride of none": "data.stride=0",
    "layers beyond the model": "optimizer.frozen_layers=99",
    "rank of none": "optimizer.lora_rank=0",
}
_TEXTS = ("missing.txt", "empty.txt", "latin1.txt", "broken.gz", "no_text.jsonl", "table.parquet")


def _prepare(kind: str, file: str, more: str = "", vocabulary: str = VOCABULARY) -> str:
    return f"prepare {kind} --input INPUT/{file} {vocabulary} {LENGTH} --output @ {more}"


def _pretrain(data: str, more: str = "", config: str = "spanbert_base", options: str = "") -> str:
    settings = f"{' '.join(SMALL.split())} {more}"
    return f"pretrain --config {config} --data {data} --output @ {options} --set {settings}"


def _finetune(data: str, config: str, more: str = "", preset: str = ENCODER) -> str:
    settings = f"{' '.join(TUNE.split())} {more}"
    return f"finetune --config {config} --preset {preset} --data {data} --output @ --set {settings}"


def messages() -> list[tuple[str, str]]:
    """Names and commands."""
    columns = "--text-column body --label-column label"
    pretrain = "pretrain --data prepare_single --output @ --config"
    named = {
        f"set: {name}": f"{pretrain} spanbert_tiny --set {each}" for name, each in _SETTINGS.items()
    }
    named |= {
        f"config: {name}": f"{pretrain} {name.replace('bad/', 'INPUT/bad/')}" for name in _CONFIGS
    }
    named |= {
        f"tuning: {name}": _finetune("texts_train", "squad_v1", each)
        for name, each in _TUNINGS.items()
    }
    named |= {
        f"vocabulary of {name}": f"prepare vocabulary --input INPUT/bad/{name} --vocabulary-size 150 --output @"
        for name in _TEXTS
    }
    named |= {f"records of {name}": _prepare("pretraining", f"bad/{name}") for name in _TEXTS}
    named |= {
        "vocabulary too small": "prepare vocabulary --input INPUT/text/* --vocabulary-size 50 --output @",
        "vocabulary without mask": _prepare("pretraining", "text/*", "", "--vocabulary INPUT/bad/no_mask.txt"),
        "vocabulary of the other case": _prepare("pretraining", "text/*", "", "--vocabulary INPUT/bad/cased.txt --lowercase"),
        "records exist": f"prepare pretraining --input INPUT/text/* {VOCABULARY} --output prepare_single",
        "other kind of output": f"prepare pretraining --input INPUT/text/* {VOCABULARY} --output texts_dev --overwrite",
        "unknown annotation": _prepare("pretraining", "text/*", "--annotate verbs"),
        "unknown spaCy model": _prepare("pretraining", "text/*", "--annotate entities --spacy-model nothing"),
        "squad: broken": _prepare("squad", "bad/broken.json", "--stride 12"),
        "squad: layout": _prepare("squad", "bad/layout.json", "--stride 12"),
        "squad: stride": _prepare("squad", "squad_dev.json", "--stride 100"),
        "mrqa: no header": _prepare("mrqa", "bad/no_header.jsonl", "--stride 12"),
        "glue: columns": _prepare("glue --task rte", "bad/columns.tsv"),
        "glue: label": _prepare("glue --task rte", "bad/label.tsv"),
        "classification: no column": _prepare("classification", "texts_dev.csv", "--text-column text"),
        "classification: short row": _prepare("classification", "bad/short_row.csv", columns),
        "classification: open quote": _prepare("classification", "bad/open_quote.csv", columns),
        "classification: other label": _prepare("classification", "bad/other_label.csv", f"{columns} --labels-of texts_train"),
        "classification: no number": _prepare("classification", "texts_dev.csv", f"{columns} --regression"),
        "coreference: open mention": _prepare("coreference", "bad/conll"),
        "coreference: no documents": _prepare("coreference", "bad/no_documents.txt"),
        "tacred: beyond the sentence": _prepare("tacred", "bad/tacred.json"),
        "tacred: few unused": _prepare("tacred", "tacred_dev.json", "", "--vocabulary INPUT/bad/few_unused.txt --lowercase"),
        "semeval: no entities": _prepare("semeval2010", "bad/semeval.txt"),
        "entities: tag": _prepare("named_entities --format conll2003", "bad/tags"),
        "entities: overlap": _prepare("named_entities --format jsonlines", "bad/overlap.jsonl"),
        "data: missing": _pretrain("nowhere"),
        "data: no records": _pretrain("INPUT/bad/not_records"),
        "data: of a task": _pretrain("texts_train"),
        "data: length": _pretrain("prepare_single", "data.sequence_length=24"),
        "data: single": _pretrain("prepare_single", config="bert_2seq_nsp"),
        "data: pairs": _pretrain("prepare_pair"),
        "data: no annotations": _pretrain("prepare_pair", config="masking_entities"),
        "preset: missing": _pretrain("prepare_single", options="--initial-preset nowhere"),
        "preset: vocabulary": _pretrain("prepare_cased", "data.sequence_length=48 model.max_sequence_length=48",
                                        options=f"--initial-preset {ENCODER}"),
        "preset: shape": _pretrain("prepare_single", "model.num_layers=3", options=f"--initial-preset {ENCODER}"),
        "run: other records": _pretrain("prepare_processes").replace("@", "pretrain_resumed"),
        "run: other values": _pretrain("prepare_single", "training.seed=5").replace("@", "pretrain_resumed"),
        "run: no run": _pretrain("prepare_single").replace("@", "texts_dev"),
        "tuning: wrong task": _finetune("texts_train", "squad_v1"),
        "tuning: unknown task": _finetune("texts_train", "INPUT/bad/task.yaml"),
        "tuning: pre-training configuration": _finetune("texts_train", "spanbert_base"),
        "tuning: no preset": _finetune("texts_train", "classification", preset="nowhere"),
        "tuning: length": _finetune("texts_train", "classification", "data.sequence_length=64"),
        "tuning: segments": _finetune("texts_train", "classification", "data.segment_aware=true"),
        "tuning: records of pre-training": _finetune("prepare_single", "classification"),
        "tuning: grid without data": f"finetune --config rte --grid --preset {ENCODER} --data rte_train --output @",
        "evaluate: no head": f"evaluate --preset {ENCODER} --data texts_dev",
        "evaluate: wrong records": "evaluate --preset finetune_texts/preset --data squad_dev",
        "evaluate: other labels": "evaluate --preset finetune_texts/preset --data pairs_dev",
        "evaluate: two": f"evaluate --preset {ENCODER} --baseline --data texts_dev",
        "evaluate: no labels": "evaluate --preset finetune_texts/preset --data texts_unlabelled",
        "predict: not JSON": "predict --preset finetune_texts/preset --input INPUT/bad/not_json.jsonl --output @",
        "predict: no field": "predict --preset finetune_texts/preset --input INPUT/bad/no_field.jsonl --output @",
        "predict: exists": "predict --preset finetune_texts/preset --data texts_dev --output predict_texts",
        "predict: top k": "predict --preset finetune_texts/preset --data texts_dev --output @ --top-k 2",
        "predict: two": "predict --preset finetune_texts/preset --data texts_dev --input x --output @",
        "export: exists": "export --preset finetune_texts/preset --output export_texts",
        "export: missing": "export --preset nowhere --output @",
        "convert: missing": "convert --from huggingface --to keras nowhere @",
        "convert: casing": "convert --from tf1 --to keras to_tf1_pair @",
        "convert: other format": "convert --from fairseq --to keras --cased --vocabulary INPUT/vocab.txt to_tf1_pair @",
        "convert: passage first": "convert --from keras --to huggingface finetune_squad/preset @",
        "convert: task to keras": "convert --from keras --to keras finetune_texts/preset @",
        "inspect: no records": "inspect INPUT/bad/not_records",
        "glue: nothing": "glue INPUT/bad/not_records",
        "compare: unknown": "compare --configs nothing --data prepare_single --steps 2 --output @",
        "configs: unknown": "configs --show nothing",
        "quickstart: exists": "quickstart --output texts_dev",
        "unknown command": "train",
        "unknown option": "pretrain --fast",
    }  # fmt: skip
    damages = (
        "flipped",
        "truncated",
        "no_shard",
        "no_manifest",
        "broken_manifest",
        "other_length",
        "vocabulary",
    )
    named |= {
        f"damaged: {name}": _pretrain(f"damaged/{name}", "training.steps=40") for name in damages
    }
    presets = ("module", "weights", "config", "vocabulary")
    named |= {
        f"damaged preset: {name}": _finetune("texts_train", "classification", preset=f"damaged/preset_{name}")
        for name in presets
    }  # fmt: skip
    return [(f"message {name}".replace("/", " "), command) for name, command in named.items()]
