"""Small made-up texts and task files, which the commands of `recorded_outputs` read."""

import argparse
import gzip
import json
import pathlib
import random
import shutil
import tarfile

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"[unused{n}]" for n in range(1, 21)))
NAMES = ("Ann", "Bob", "Eve", "Tom", "London", "Berlin", "Paris", "Microsoft")
WORDS = (
    *("the", "a", "cat", "dog", "owl", "house", "river", "old", "green", "quiet", "city", "letter"),
    *("sees", "likes", "has", "wrote", "visited", "lives", "sleeps", "in", "near", "and", "with"),
    *("who", "what", "she", "he", "it", "not", "often", "where", "is"),
)
PIECES = (*".,?!()'-:", *(chr(97 + n) for n in range(26)), *(f"##{chr(97 + n)}" for n in range(26)))
PARTS = ("vis", "##ited", "##ter", "let", "##s", "##en", "ber", "##lin")  # words of several pieces


def write_inputs(directory: pathlib.Path) -> None:
    """Writes all files that the commands read.

    Args:
        directory: a new directory.
    """
    directory.mkdir(parents=True)
    kept = [word for word in map(str.lower, (*WORDS, *NAMES)) if word not in ("visited", "letter")]
    pieces = [*SPECIAL, *dict.fromkeys([*kept, *PIECES, *PARTS])]
    _write(directory / "vocab.txt", "".join(f"{piece}\n" for piece in pieces))
    source = random.Random(1)
    for number in range(12):
        _write(directory / "text" / f"{number:02}.txt", _document(source, 9))
    with gzip.GzipFile(directory / "text" / "12.gz", "wb", mtime=0) as file:
        file.write(_document(source, 6).encode())
    lines = [json.dumps({"text": _document(source, 3).replace("\n\n", "\n")}) for _ in range(4)]
    _write(directory / "text" / "13.jsonl", "".join(f"{line}\n" for line in lines))
    wiki = "".join(
        f'<doc id="{n}" url="u" title="T">\nT\n\n{_document(source, 3)}\n</doc>\n' for n in range(3)
    )
    _write(directory / "text" / "14_wiki", wiki)
    _write_tasks(directory, source)
    _write_raw(directory)
    _write_bad(directory / "bad")


def _write(path: pathlib.Path, content: str | bytes | object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    else:
        path.write_text(json.dumps(content), encoding="utf-8")


def _lines(values: list) -> str:
    return "".join(f"{json.dumps(value)}\n" for value in values)


def _sentence(source: random.Random) -> str:
    words = source.choices(WORDS, k=source.randint(3, 9))
    words[source.randrange(len(words))] = source.choice(NAMES)
    words[source.randrange(len(words))] = source.choice(NAMES)
    text = " ".join(words) + source.choice([".", ".", "?", "!"])
    return text[0].upper() + text[1:]


def _document(source: random.Random, num_paragraphs: int) -> str:
    return "\n\n".join(
        " ".join(_sentence(source) for _ in range(source.randint(1, 5)))
        for _ in range(num_paragraphs)
    )


def _write_tasks(directory: pathlib.Path, source: random.Random) -> None:
    for name, count in (("train", 24), ("dev", 12)):
        questions = [_question(source, f"{name}{number}") for number in range(count)]
        _write(directory / f"squad_{name}.json", _squad(questions, with_impossible=False))
        _write(directory / f"squad2_{name}.json", _squad(questions, with_impossible=True))
        _write(directory / f"mrqa_{name}.jsonl", _mrqa(questions))
        texts = [f"{_sentence(source)},l{number % 3},{number % 5}.5" for number in range(count)]
        _write(directory / f"texts_{name}.csv", "body,label,number\n" + "\n".join(texts) + "\n")
        pairs = [
            {"a": _sentence(source), "b": _sentence(source), "label": ("no", "yes")[n % 2]}
            for n in range(count)
        ]
        _write(directory / f"pairs_{name}.jsonl", _lines(pairs))
        _write(directory / f"tacred_{name}.json", _tacred(source, count))
        _write(directory / f"semeval_{name}.txt", _semeval(source, count))
        _write(directory / f"conll_{name}", "\n".join(_tagged(source) for _ in range(count)))
        documents = [_coreference(source, number) for number in range(count // 4)]
        _write(directory / f"coref_{name}_conll", "".join(map(_conll, documents)))
        _write(directory / f"coref_{name}.jsonlines", _lines(documents))
    for task in ("cola", "rte", "stsb", "mnli"):
        for name, count in (("train", 16), ("dev", 8)):
            _write(directory / task / f"{name}.tsv", _glue(source, task, count))
    _write(directory / "wnli" / "train.tsv", _glue(source, "wnli", 8))
    _write(
        directory / "wnli" / "dev.tsv", _glue(source, "wnli", 71)
    )  # as GLUE has it: it is scored
    _write(directory / "wnli" / "test.tsv", _glue(source, "wnli", 146, labelled=False))
    spans = [{"start": 0, "end": 3, "label": "PER"}, {"start": 9, "end": 15, "label": "LOC"}]
    entities = [{"id": str(n), "text": "Ann sees Berlin.", "entities": spans} for n in range(6)]
    _write(directory / "entities.jsonl", _lines(entities))
    crossre = {"sentence": ["Ann", "sees", "Berlin"], "ner": [[0, 0, "person"], [2, 2, "city"]]}
    crossre = [{"doc_key": str(n), **crossre, "relations": []} for n in range(4)]
    _write(directory / "crossre.json", _lines(crossre))


def _question(source: random.Random, name: str) -> dict:
    context = " ".join(_sentence(source) for _ in range(6))
    words = context.split()
    answer = source.choice([word.strip(".?!") for word in words])
    start = context.index(answer)
    return {"id": name, "question": f"Who likes {answer} near the river?", "context": context} | {
        "answer": answer,
        "start": start,
    }


def _squad(questions: list[dict], with_impossible: bool) -> dict:
    paragraphs = []
    for number, each in enumerate(questions):
        answers = [{"text": each["answer"], "answer_start": each["start"]}]
        entry = {"id": each["id"], "question": each["question"], "answers": answers}
        if with_impossible and number % 3 == 0:
            entry["answers"] = []
        if with_impossible:
            entry["is_impossible"] = number % 3 == 0
        paragraphs.append({"context": each["context"], "qas": [entry]})
    return {"version": "1.1", "data": [{"title": "made up", "paragraphs": paragraphs}]}


def _mrqa(questions: list[dict]) -> str:
    lines = [{"header": {"dataset": "made up"}}]
    for each in questions:
        span = [each["start"], each["start"] + len(each["answer"]) - 1]
        found = [{"text": each["answer"], "char_spans": [span]}]
        entry = {"qid": each["id"], "question": each["question"], "answers": [each["answer"]]}
        lines.append({"context": each["context"], "qas": [entry | {"detected_answers": found}]})
    return _lines(lines)


def _tacred(source: random.Random, count: int) -> list[dict]:
    found = []
    for number in range(count):
        words = [source.choice(NAMES[:4]), *source.choices(WORDS, k=4), source.choice(NAMES[4:])]
        words.append("-LRB-" if number % 2 else ".")
        places = {"subj_start": 0, "subj_end": 0, "obj_start": 5, "obj_end": 5}
        types = {"subj_type": "PERSON", "obj_type": ("CITY", "ORGANIZATION")[number % 2]}
        relation = ("no_relation", "lives_in", "works_for")[number % 3]
        found.append({"id": f"x{number}", "token": words, "relation": relation} | places | types)
    return found


def _semeval(source: random.Random, count: int) -> str:
    relations = ("Entity-Destination(e1,e2)", "Other", "Cause-Effect(e2,e1)")
    return "".join(
        f'{number}\t"The <e1>{source.choice(WORDS)}</e1> has {_sentence(source)[:-1]} the '
        f'<e2>{source.choice(WORDS)}</e2>."\n{relations[number % 3]}\nComment:\n\n'
        for number in range(1, count + 1)
    )


def _tagged(source: random.Random) -> str:
    words = [*source.choices(WORDS, k=3), source.choice(NAMES[:4]), "visited", "old", "London", "."]
    tags = ["O", "O", "O", "B-PER", "O", "B-LOC", "I-LOC", "O"]
    return "".join(f"{word} x {tag}\n" for word, tag in zip(words, tags, strict=True))


def _coreference(source: random.Random, number: int) -> dict:
    sentences, clusters, count = [], {}, 0
    for _ in range(5):
        name, thing = source.choice(["Ann", "Bob"]), source.choice(["cat", "dog"])
        is_again = name in clusters and source.random() < 0.5
        word = {"Ann": "She", "Bob": "He"}[name] if is_again else name
        clusters.setdefault(name, []).append([count, count])
        clusters.setdefault(thing, []).append([count + 2, count + 3])
        sentences.append([word, source.choice(["sees", "likes"]), "the", thing, "."])
        count += 5
    kept = [spans for spans in clusters.values() if len(spans) > 1]
    speakers = [["-"] * 5 for _ in sentences]
    return {"doc_key": f"nw/made/{number:03}", "sentences": sentences, "clusters": kept} | {
        "speakers": speakers
    }


def _conll(document: dict) -> str:
    words = [word for sentence in document["sentences"] for word in sentence]
    cells = [[] for _ in words]
    for number, spans in enumerate(document["clusters"]):
        for start, end in spans:
            cells[start].append(f"({number})" if start == end else f"({number}")
            cells[end] += [f"{number})"] if start != end else []
    lines = [f"#begin document ({document['doc_key']}); part 000"]
    for place, word in enumerate(words):
        lines += [""] * (place > 0 and place % 5 == 0)
        cell = "|".join(cells[place]) or "-"
        columns = [
            document["doc_key"],
            "0",
            place % 5,
            word,
            "-",
            "*",
            "-",
            "-",
            "-",
            "-",
            "*",
            cell,
        ]
        lines.append("   ".join(map(str, columns)))
    return "\n".join([*lines, "", "#end document", ""])


def _glue(source: random.Random, task: str, count: int, *, labelled: bool = True) -> str:
    if task == "cola":
        return "".join(f"s\t{n % 2}\t*\t{_sentence(source)}\n" for n in range(count))
    texts, label = ["sentence1", "sentence2"], "score" if task == "stsb" else "label"
    label = "gold_label" if task == "mnli" else label
    labels = {
        "rte": ("entailment", "not_entailment"),
        "stsb": ("0.5", "3.2", "4.9"),
        "mnli": ("contradiction", "entailment", "neutral"),
        "wnli": ("0", "1", "0"),
    }[task]
    rows = [["index", *texts, *[label] * labelled]]
    for number in range(count):
        row = [str(number), _sentence(source), _sentence(source)]
        rows.append([*row, *[labels[number % len(labels)]] * labelled])
    return "".join("\t".join(row) + "\n" for row in rows)


def _write_raw(directory: pathlib.Path) -> None:
    """What `predict --input` and the exports are asked."""
    for name, lines in RAW.items():
        _write(directory / f"raw_{name}.jsonl", _lines(lines))
    _write(directory / "raw.txt", "Ann visited London.\n\nTom sees the owl in Berlin!\n")


_PASSAGE = "Ann has the cat. Bob visited the old house near London. " * 3
_RELATION = {"text": "Ann lives in Berlin .", "subject": [0, 3], "object": [13, 19]}
RAW = {
    "squad": [
        {"question": "Who has the cat?", "context": _PASSAGE},
        {"question": "Where is Tom?", "context": "Tom sleeps."},
    ],
    "text": [{"text": "Ann sees the owl in Berlin."}, {"text": "Ünknown words and 猫"}],
    "pair": [{"text": "Ann sees the owl.", "text_pair": "Bob sleeps in the old house."}],
    "relation": [
        _RELATION | {"subject_type": "PERSON", "object_type": "CITY"},
        {"token": ["Bob", "sees", "Paris"], "subj_start": 0, "subj_end": 0}
        | {"obj_start": 2, "obj_end": 2, "subj_type": "PERSON", "obj_type": "CITY"},
    ],
    "coref": [
        {"text": "Ann likes the cat. She sees the cat."},
        {"text": "I am here.\nSo am I.", "speakers": ["Ann", "Bob"]},
    ],
    "masked": [{"text": "The [MASK] of London ."}, {"text": "Ann [MASK] the [MASK] ."}],
}


def _write_bad(directory: pathlib.Path) -> None:
    """Files that a command must refuse."""
    passage = {"context": "Ann sat.", "qas": [{"id": "1", "question": "Who?", "answers": "Ann"}]}
    relation = {"token": ["a", "b"], "subj_start": 0, "subj_end": 0, "obj_start": 7, "obj_end": 7}
    overlap = [{"start": 0, "end": 3, "label": "A"}, {"start": 2, "end": 5, "label": "B"}]
    contents = {
        "empty.txt": "",
        "latin1.txt": "café".encode("latin1"),
        "broken.gz": b"\x1f\x8b\x08\x00",
        "no_text.jsonl": '{"text": "A."}\n{"txt": "B."}\n',
        "table.parquet": b"PAR1" + bytes(64) + b"PAR1",
        "no_mask.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n",
        "few_unused.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[unused1]\nann\n",
        "cased.txt": "".join(f"{piece}\n" for piece in (*SPECIAL, *NAMES)),
        "broken.json": '{"data": [',
        "layout.json": {"data": [{"paragraphs": [passage]}]},
        "no_header.jsonl": '{"context": "x", "qas": []}\n',
        "columns.tsv": "index\tone\ttwo\nx\ty\n",
        "short_row.csv": "body,label\nAnn sat.,a\nBob\n",
        "open_quote.csv": 'body,label\n"Ann sat.,a\nBob,b\n',
        "other_label.csv": "body,label\nAnn sat.,l9\n",
        "label.tsv": "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tperhaps\n",
        "conll": "#begin document (d); part 000\nd 0 0 a - * - - - - * (1\n#end document\n",
        "no_documents.txt": "Ann sat.\n",
        "tacred.json": [relation | {"subj_type": "A", "obj_type": "B", "relation": "r", "id": "1"}],
        "semeval.txt": '1\t"The cat has the dog."\nOther\nComment:\n\n',
        "tags": "Ann X-PER\nsat O\n\n",
        "overlap.jsonl": _lines([{"text": "Ann sat", "entities": overlap}]),
        "not_json.jsonl": '{"text": "Ann"}\nno\n',
        "no_field.jsonl": '{"words": "Ann"}\n',
        "indent.yaml": "training:\n  steps: 5\n batch_size: [\n",
        "key.yaml": "base: spanbert_tiny\ntraining:\n  stepz: 5\n",
        "type.yaml": "base: spanbert_tiny\ntraining:\n  steps: many\n",
        "twice.yaml": "base: spanbert_tiny\ntraining:\n  steps: 5\n  steps: 6\n",
        "no_base.yaml": "base: nowhere\n",
        "circle.yaml": "base: circle.yaml\n",
        "section.yaml": "base: spanbert_tiny\nmasking: 5\n",
        "task.yaml": "task: cooking\n",
        "tag.yaml": "base: spanbert_tiny\ntraining: !!python/object:os.system {}\n",
        "not_records/x.txt": "x",
    }
    for name, content in contents.items():
        _write(directory / name, content)


def damage_records(directory: pathlib.Path) -> None:
    """Copies of the records `prepare_single` with one damage each, and of a preset with some.

    Args:
        directory: where the commands have written their records and presets.
    """
    records = directory / "prepare_single"
    manifest = json.loads((records / "dataset_info.json").read_text())
    shard = sorted(path.name for path in records.iterdir() if path.name.startswith("train-"))[0]
    whole = (records / shard).read_bytes()
    damages = {
        "flipped": (shard, whole[:300] + bytes([whole[300] ^ 4]) + whole[301:]),
        "truncated": (shard, whole[: len(whole) // 2]),
        "no_shard": (shard, None),
        "no_manifest": ("dataset_info.json", None),
        "broken_manifest": ("dataset_info.json", "{"),
        "other_length": ("dataset_info.json", manifest | {"sequence_length": "x"}),
        "vocabulary": ("vocab.txt", (records / "vocab.txt").read_text() + "more\n"),
    }
    preset = directory / "pretrain_single" / "preset"
    config = json.loads((preset / "config.json").read_text())
    weights = (preset / "model.weights.h5").read_bytes()
    of_preset = {
        "preset_module": ("config.json", config | {"module": "keras_cv.models"}),
        "preset_weights": ("model.weights.h5", weights[: len(weights) // 2]),
        "preset_config": ("config.json", "{"),
        "preset_vocabulary": ("assets/tokenizer/vocabulary.txt", None),
    }
    for source, changes in ((records, damages), (preset, of_preset)):
        for name, (file, content) in changes.items():
            copy = directory / "damaged" / name
            shutil.copytree(source, copy)
            (copy / file).unlink()
            if content is not None:
                _write(copy / file, content)


def write_fairseq(directory: pathlib.Path, num_pieces: int) -> None:
    """A checkpoint of the original SpanBERT code, made from PyTorch's BERT.

    Args:
        directory: gets `fairseq.pt` and `with_head.tar.gz`.
        num_pieces: entries of the vocabulary.
    """
    import torch
    import transformers

    sizes = {"hidden_size": 64, "num_attention_heads": 1, "intermediate_size": 96}
    sizes |= {"num_hidden_layers": 2, "max_position_embeddings": 32, "vocab_size": num_pieces}
    bert = transformers.BertForPreTraining(transformers.BertConfig(**sizes))
    state = {f"decoder.{name}": tensor for name, tensor in bert.state_dict().items()}
    prefix = "decoder.cls.pair_target_predictions."
    shapes = {"position_embeddings.weight": (15, 9), "bias": (num_pieces,)}
    for number, width in ((1, 2 * 64 + 9), (2, 64)):
        layer = "mlp_layer_norm."
        shapes |= {
            f"{layer}linear{number}.weight": (64, width),
            f"{layer}linear{number}.bias": (64,),
        }
        shapes |= {f"{layer}layer_norm{number}.{kind}": (64,) for kind in ("weight", "bias")}
    state |= {prefix + name: torch.zeros(shape) for name, shape in shapes.items()}
    generator = torch.Generator().manual_seed(1)
    for tensor in state.values():
        if tensor.is_floating_point():
            tensor.normal_(0.02, 0.1, generator=generator)
    table = "decoder.bert.embeddings.word_embeddings.weight"
    state[f"{prefix}decoder.weight"] = state[table]
    names = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
    for old, new in names:
        state = {name.replace(old, new): tensor for name, tensor in state.items()}
    arguments = argparse.Namespace(max_pair_targets=15)
    torch.save({"args": arguments, "model": state}, directory / "fairseq.pt")
    torch.save(state, directory / "model.pt")
    with tarfile.open(directory / "with_head.tar.gz", "w:gz") as archive:
        archive.add(directory / "model.pt", "model.pt")
