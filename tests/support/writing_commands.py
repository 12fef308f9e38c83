"""The commands that write, each with an output OUT and inputs that are read only after it."""

_RECORDS = ["--input", "missing", "--vocabulary", "missing", "--output", "OUT"]

# Their output appears whole, in place of what lies there.
BESIDE = [
    ["prepare", "vocabulary", "--vocabulary-size", "999", "--input", "missing", "--output", "OUT"],
    ["prepare", "pretraining", *_RECORDS],
    *(["prepare", name, *_RECORDS] for name in ("squad", "mrqa", "coreference", "tacred")),
    ["prepare", "semeval2010", *_RECORDS],
    ["prepare", "named_entities", *_RECORDS, "--format", "conll2003"],
    ["prepare", "glue", *_RECORDS, "--task", "rte"],
    ["prepare", "classification", *_RECORDS, "--text-column", "a", "--label-column", "b"],
    ["prepare", "repair", ".", "OUT"],
    ["convert", "--from", "tf1", "--to", "keras", "missing", "OUT"],
    ["export", "--preset", "missing", "--output", "OUT"],
    ["predict", "--preset", "missing", "--input", "missing", "--output", "OUT"],
    ["evaluate", "--preset", "missing", "--data", ".", "--report", "OUT"],
    ["inspect", ".", "--png", "OUT"],
    ["glue", ".", "--submission", "OUT"],
]
# Their output is a directory in which files change.
INSIDE = [
    ["pretrain", "--config", "spanbert_tiny", "--data", ".", "--output", "OUT"],
    ["finetune", "--config", "rte", "--preset", "missing", "--data", ".", "--output", "OUT"],
    ["compare", "--configs", "missing", "--data", ".", "--steps", "1", "--output", "OUT"],
    ["quickstart", "--input", "missing", "--output", "OUT"],
]
