"""How a directory that `convert` has written is recognised, for each format."""

from spanbert_tf.files.outputs import OutputKind
from spanbert_tf.files.preset_files import PRESET_KIND

HUGGINGFACE_KIND = OutputKind(
    "a model of transformers",
    "config.json",
    ("model.safetensors", "tokenizer_config.json", "vocab.txt"),
)
TF1_KIND = OutputKind(
    "a checkpoint of TensorFlow 1", "bert_config.json", ("bert_model.ckpt.*", "vocab.txt")
)
OUTPUT_KINDS = {
    "keras": PRESET_KIND,
    "keras_bert": PRESET_KIND,
    "huggingface": HUGGINGFACE_KIND,
    "tf1": TF1_KIND,
}
