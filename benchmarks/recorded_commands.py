"""The commands that `recorded_outputs` runs: every one of README and docs, on tiny data.

A line is a name and a command; `@` in it is the place of its own output, which has that name. They
run in the folder of the outputs, so that no path is absolute. `INPUT` are the files of
`recorded_inputs`.
"""

# ruff: noqa: E501 - a command a line

VOCABULARY = "--vocabulary INPUT/vocab.txt --lowercase"
LENGTH = "--sequence-length 32"
TEXT = f"prepare pretraining --input INPUT/text/* {VOCABULARY} {LENGTH} --output @"
SMALL = """model.num_layers=2 model.num_heads=2 model.hidden_dim=32 model.intermediate_dim=48
    model.max_sequence_length=32 objectives.span_position_dim=8 optimizer.learning_rate=0.01
    optimizer.warmup_steps=2 training.batch_size=8 training.steps=20 training.schedule_steps=30
    training.strategy=one_device training.log_every=1 training.evaluate_every=10
    training.checkpoint_every_steps=10 training.precision=float32 data.sequence_length=32"""
TUNE = """training.max_steps=10 training.batch_size=4 training.log_every=1 prediction.batch_size=8
    training.precision=float32 data.sequence_length=32"""
ENCODER = "pretrain_single/preset"
COREF = """training.batch_size=1 resolver.ffnn_dim=8 resolver.feature_dim=4
    data.max_training_segments=2 resolver.max_span_width=4"""


def _lines(text: str) -> list[tuple[str, str]]:
    """`name | command` of each line."""
    split = (line.split("|", 1) for line in text.strip().splitlines() if line.strip())
    return [(name.strip(), command.strip()) for name, command in split]


def _prepared(kind: str, name: str, train: str, dev: str, options: str = "") -> str:
    """The lines that write training and held-out records."""
    options = f"{VOCABULARY} {LENGTH} {options}"
    return (
        f"{name}_train | prepare {kind} --input INPUT/{train} {options} --output @\n"
        f"{name}_dev | prepare {kind} --input INPUT/{dev} {options} --output @\n"
    )


def _glue(task: str) -> str:
    return _prepared(f"glue --task {task}", task, f"{task}/train.tsv", f"{task}/dev.tsv")


PREPARE = _lines(f"""
    vocabulary | prepare vocabulary --input INPUT/text/* --vocabulary-size 150 --output @
    vocabulary_lowercase | prepare vocabulary --input INPUT/text/* --vocabulary-size 150 --lowercase --output @
    prepare_single | {TEXT} --validation-fraction 0.2 --num-shards 2
    prepare_pair | {TEXT} --validation-fraction 0.2 --sequences pair
    prepare_annotated | {TEXT} --validation-fraction 0 --annotate entities,noun_phrases
    prepare_annotated_pair | {TEXT} --validation-fraction 0.2 --annotate entities,noun_phrases --sequences pair
    prepare_cased | prepare pretraining --input INPUT/text/* --vocabulary vocabulary --sequence-length 48 --output @
    prepare_processes | {TEXT} --validation-fraction 0.2 --num-processes 2
    prepare_separator | {TEXT} --document-separator Ann --keep-accents
""") + _lines(
    _prepared("squad", "squad", "squad_train.json", "squad_dev.json", "--stride 12")
    + _prepared("squad", "squad2", "squad2_train.json", "squad2_dev.json", "--stride 12 --version-2")
    + _prepared("squad", "squad_first", "squad_train.json", "squad_dev.json", "--stride 12 --question-first")
    + _prepared("squad", "squad_segments", "squad_train.json", "squad_dev.json", "--stride 12 --segment-aware --question-first")
    + _prepared("mrqa", "mrqa", "mrqa_train.jsonl", "mrqa_dev.jsonl", "--stride 12")
    + f"mrqa_half | prepare mrqa --input INPUT/mrqa_dev.jsonl --half test --stride 12 {VOCABULARY} {LENGTH} --output @\n"
    + "".join(map(_glue, ("cola", "rte", "stsb", "mnli", "wnli")))
    + f"wnli_test | prepare glue --task wnli --input INPUT/wnli/test.tsv {VOCABULARY} {LENGTH} --output @\n"
    + _prepared("classification", "texts", "texts_train.csv", "texts_dev.csv", "--text-column body --label-column label")
    + _prepared("classification", "numbers", "texts_train.csv", "texts_dev.csv",
                "--text-column body --label-column number --regression --segment-aware")
    + _prepared("classification", "pairs", "pairs_train.jsonl", "pairs_dev.jsonl",
                "--text-column a --text-pair-column b --label-column label")
    + f"texts_labels_of | prepare classification --input INPUT/texts_dev.csv --text-column body --label-column label --labels-of texts_train {VOCABULARY} {LENGTH} --output @\n"
    + f"texts_unlabelled | prepare classification --input INPUT/texts_dev.csv --text-column body --labels-of texts_train {VOCABULARY} {LENGTH} --output @\n"
    + _prepared("coreference", "coref", "coref_train_conll", "coref_dev_conll", "--max-training-segments 2 --max-span-width 4")
    + f"coref_jsonlines | prepare coreference --input INPUT/coref_dev.jsonlines {VOCABULARY} {LENGTH} --output @\n"
    + _prepared("tacred", "tacred", "tacred_train.json", "tacred_dev.json", "--training-input INPUT/tacred_train.json")
    + f"tacred_text | prepare tacred --entities text --input INPUT/tacred_dev.json {VOCABULARY} {LENGTH} --output @\n"
    + _prepared("semeval2010", "semeval", "semeval_train.txt", "semeval_dev.txt", "--training-input INPUT/semeval_train.txt")
    + f"semeval_masked | prepare semeval2010 --entities masked --input INPUT/semeval_dev.txt {VOCABULARY} {LENGTH} --output @\n"
    + _prepared("named_entities --format conll2003", "ner", "conll_train", "conll_dev")
    + f"ner_jsonlines | prepare named_entities --format jsonlines --input INPUT/entities.jsonl {VOCABULARY} {LENGTH} --output @\n"
    + f"ner_crossre | prepare named_entities --format crossre --input INPUT/crossre.json {VOCABULARY} {LENGTH} --output @\n"
)  # fmt: skip


def _pretrain(name: str, config: str, data: str, more: str = "", options: str = "") -> str:
    command = f"pretrain --config {config} --data {data} --output @ {options}"
    return f"{name} | {command} --set {' '.join(SMALL.split())} {more}\n"


PRETRAIN = _lines(
    _pretrain("pretrain_single", "spanbert_base", "prepare_single")
    + _pretrain("pretrain_pair", "spans_2seq_nsp", "prepare_pair")
    + _pretrain("pretrain_segments", "segabert_base", "prepare_single")
    + _pretrain("pretrain_bfloat16", "spanbert_base", "prepare_single", "training.precision=mixed_bfloat16")
    + _pretrain("pretrain_accumulated", "spanbert_base", "prepare_single", "training.accumulation_steps=2")
    + _pretrain("pretrain_resumed", "spanbert_base", "prepare_single", "training.steps=10")
    # In the same RUN; the recording of the line above keeps what stood there.
    + _pretrain("pretrain_resumed+", "spanbert_base", "prepare_single")
    + _pretrain("pretrain_continued", "continue", "prepare_single",
                "training.head_steps=5 optimizer.encoder_learning_rate=0.005", "--initial-preset pretrain_segments/preset")
    + _pretrain("pretrain_skip", "spanbert_base", "damaged/flipped", "training.steps=5 data.on_corrupt=skip")
)  # fmt: skip
REPLICAS = _lines(
    _pretrain("pretrain_replicas", "spanbert_base", "prepare_single", "training.strategy=mirrored", "--devices 2")
)  # fmt: skip


def _finetune(name: str, config: str, data: str, more: str = "", preset: str = ENCODER) -> str:
    command = f"finetune --config {config} --preset {preset} --data {data}_train"
    command += (
        f" --validation-data {data}_dev --output @ --set {' '.join((TUNE + ' ' + more).split())}"
    )
    return f"finetune_{name} | {command}\n"


def _predicted(name: str, data: str) -> str:
    """The line that writes the task's official files with what was fine-tuned."""
    options = f"--preset finetune_{name}/preset --data {data}_dev"
    return f"predict_{name} | predict {options} --output @\n"


def _asked(name: str, data: str, raw: str = "") -> str:
    """The lines that score, too, and answer raw inputs."""
    preset = f"--preset finetune_{name}/preset"
    lines = f"evaluate_{name} | evaluate {preset} --data {data}_dev --report @\n"
    lines += _predicted(name, data)
    if raw:
        options = f"{preset} --input INPUT/raw_{raw}.jsonl --top-k 2"
        lines += f"answer_{name} | predict {options} --output @\n"
    return lines


GRID = "grid.learning_rates=[0.001,0.01] grid.batch_sizes=[4] grid.epochs=[] training.max_steps=3"
TASKS = _lines(
    _finetune("squad", "squad_v1", "squad", "data.stride=12")
    + _finetune("squad2", "squad_v2", "squad2", "data.stride=12")
    + _finetune("squad_first", "squad_v1", "squad_first", "data.stride=12 data.question_first=true training.max_steps=3")
    + _finetune("squad_segments", "segabert_squad_v1", "squad_segments",
                "data.stride=12 training.max_steps=3", "pretrain_segments/preset")
    + _asked("squad", "squad", "squad") + _predicted("squad2", "squad2")
    + _finetune("texts", "classification", "texts", "optimizer.layer_decay=0.9 training.keep_best=true training.min_steps_between_evaluations=2")
    + _asked("texts", "texts", "text")
    + "lines_texts | predict --preset finetune_texts/preset --input INPUT/raw.txt --format text --output -\n"
    + _finetune("pairs", "classification", "pairs", "optimizer.lora_rank=2")
    + _predicted("pairs", "pairs")
    + _finetune("stsb", "stsb", "stsb", "training.max_steps=4 training.accumulation_steps=2")
    + f"finetune_grid | finetune --config rte --grid --preset {ENCODER} --data rte_train --validation-data rte_dev --output @ --set {' '.join(TUNE.split())} {GRID}\n"
    + _finetune("coref", "coreference_small", "coref", COREF)
    + _asked("coref", "coref")
    + "score_conll | scoring INPUT/coref_dev_conll predict_coref/predictions.conll\n"
    + _finetune("tacred", "tacred", "tacred", "optimizer.bias_correction=false optimizer.global_clipnorm=null optimizer.clipnorm=1.0")
    + _asked("tacred", "tacred")
    + _finetune("semeval", "semeval2010_task8", "semeval", "data.entities=text optimizer.frozen_layers=1")
    + _predicted("semeval", "semeval")
    + _finetune("ner", "named_entities", "ner", "optimizer.learning_rate=0.01 training.random_weights=true")
    + _asked("ner", "ner")
    + f"glue_runs/wnli | finetune --config wnli --preset {ENCODER} --data wnli_train --validation-data wnli_dev --output @ --set data.sequence_length=32 training.precision=float32\n"
    + "glue_runs/test_wnli | predict --preset glue_runs/wnli/preset --data wnli_test --output @\n"
    + "glue.zip | glue glue_runs --submission @\n"
    + "evaluate_baseline | evaluate --baseline --data squad_dev --data squad2_dev\n"
    + "evaluate_baseline_texts | evaluate --baseline --data texts_dev\n"
    + "evaluate_baseline_coref | evaluate --baseline --data coref_dev\n"
    + "evaluate_bfloat16 | evaluate --preset finetune_texts/preset --data texts_dev --precision bfloat16\n"
    + f"answer_masked | predict --preset {ENCODER} --input INPUT/raw_masked.jsonl --output @ --top-k 3\n"
)  # fmt: skip

EXPORT = _lines(
    "".join(
        f"export_{name} | export --preset finetune_{name}/preset --output @\n"
        for name in ("squad", "texts", "pairs", "coref", "tacred", "ner")
    )
    + f"export_masked | export --preset {ENCODER} --output @ --top-k 3\n"
    + "export_bfloat16 | export --preset finetune_texts/preset --output @ --precision bfloat16 --version 3\n"
)

SEGMENTS = "pretrain_segments/preset"
CONVERT = _lines(
    "".join(
        f"to_{target}_{name} | convert --from keras --to {target} {preset} @\n"
        f"back_{target}_{name} | convert --from {source} --to keras {options} to_{target}_{name} @\n"
        for target, source, name, preset, options in (
            ("huggingface", "huggingface", "pair", "pretrain_pair/preset", ""),
            ("huggingface", "huggingface", "segments", SEGMENTS, ""),
            ("huggingface", "huggingface", "first", "finetune_squad_first/preset", ""),
            ("huggingface", "huggingface", "texts", "finetune_texts/preset", ""),
            ("huggingface", "huggingface", "pairs", "finetune_pairs/preset", "--pairs"),
            ("huggingface", "huggingface", "ner", "finetune_ner/preset", ""),
            ("tf1", "tf1", "pair", "pretrain_pair/preset", "--lowercase"),
            ("tf1", "tf1", "coref", "finetune_coref/preset", "--lowercase"),
            ("keras_bert", "keras", "pair", "pretrain_pair/preset", ""),
        )
    )
    + "fairseq | convert --from fairseq --to keras --lowercase --vocabulary INPUT/vocab.txt INPUT/fairseq.pt @\n"
    + "fairseq_archive | convert --from fairseq --to keras --lowercase --vocabulary INPUT/vocab.txt INPUT/with_head.tar.gz @\n"
    + "keras_to_keras | convert --from keras --to keras pretrain_single/preset @\n"
)  # fmt: skip

_COMMANDS = [
    *("", "prepare", "inspect", "pretrain", "finetune", "evaluate", "predict", "glue", "configs"),
    *("convert", "compare", "export", "quickstart"),
]
_PREPARE = "vocabulary pretraining squad mrqa glue classification coreference tacred semeval2010"
_COMMANDS += [f"prepare {name}" for name in (*_PREPARE.split(), "named_entities")]
SHOWN = (
    *("spanbert_base", "spanbert", "segabert_base", "masking_entities", "masking_whole_words"),
    *("continue", "bert_2seq_nsp", "squad_v1", "squad_v2", "coreference_small", "tacred", "mnli"),
    *("named_entities", "stsb"),
)
PRINTED = _lines(
    "".join(f"help {name} | {name} --help\n" for name in _COMMANDS)
    + "configs | configs\n"
    + "".join(f"configs {name} | configs --show {name}\n" for name in SHOWN)
    + "inspect_single | inspect prepare_single --config spanbert_base --set data.sequence_length=32\n"
    + "inspect_pair | inspect prepare_pair --config bert_2seq_nsp --num-examples 1 --set data.sequence_length=32\n"
    + "inspect_segments | inspect prepare_single --config segabert_base --set data.sequence_length=32\n"
    + "inspect_entities | inspect prepare_annotated_pair --config masking_entities --num-examples 2 --set data.sequence_length=32\n"
    + "".join(f"inspect_{name} | inspect {name}_dev\n" for name in ("squad2", "texts", "pairs", "coref", "tacred", "ner"))
    + f"compare | compare --configs bert_1seq spans_1seq_sbo --data prepare_single --steps 8 --seeds 1 2 --output @ --set {' '.join(SMALL.split()[:7])} data.sequence_length=32\n"
    + "quickstart | quickstart --input INPUT/quickstart/*.txt --output @\n"
)  # fmt: skip
