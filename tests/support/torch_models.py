"""BERT models of HuggingFace with random weights, and sentences for them."""

import numpy as np
import torch
import transformers

WORDS = ["the", "a", "cat", "dog", "sat", "##s", "on", "mat", ".", "zoe", "paid", "in", "short"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
SENTENCES = ["the cats sat on a mat.", "Zoë paid in mats", "short", "the dog. the dog. a dog"]


def torch_model(kind=transformers.BertForPreTraining, seed=0, **sizes):
    """A model in which no weight is at its initial 0 or 1."""
    sizes = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 37,
        "max_position_embeddings": 16,
        **sizes,
    }
    torch.manual_seed(seed)
    model = kind(transformers.BertConfig(**sizes, attn_implementation="eager")).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.02, std=0.1)
    return model


def save_torch_model(model, directory, vocabulary=VOCABULARY, lowercase=True):
    """`save_pretrained` with its vocabulary; `lowercase` None: not stated."""
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in vocabulary))
    if lowercase is not None:
        text = f'{{"do_lower_case": {str(lowercase).lower()}}}'
        (directory / "tokenizer_config.json").write_text(text)
    return directory


def rows_of(vocabulary, sentences=SENTENCES, lowercase=True):
    """Packed rows by HuggingFace's tokenizer: input_ids, token_type_ids, attention_mask."""
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    tokenizer = transformers.BertTokenizerFast(vocab=ids, do_lower_case=lowercase)
    rows = tokenizer(list(sentences), padding=True, return_tensors="np")
    rows["token_type_ids"][:, 4:] = 1  # so that the second segment matters
    return dict(rows)


def keras_inputs(rows):
    """The same rows for a Keras model."""
    names = ("input_ids", "token_type_ids", "attention_mask")
    ours = ("token_ids", "segment_ids", "padding_mask")
    return {name: rows[theirs].astype("int32") for name, theirs in zip(ours, names, strict=True)}


def torch_outputs(model, rows):
    with torch.no_grad():
        return model(**{name: torch.tensor(values) for name, values in rows.items()})


def largest_difference(actual, expected, rows):
    """Between outputs [rows, positions, …], where there are tokens."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    is_token = rows["attention_mask"].astype(bool)
    return float(np.abs(actual[is_token] - expected[is_token]).max())
