"""Models that follow KerasHub's conventions. Importing this package registers them with Keras.

Without TensorFlow, under `KERAS_BACKEND=jax`, the package has only the backbone and the pretrainer,
which take arrays. All other models read text, and need TensorFlow to tokenize it.
"""

from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_pretrainer import SpanBertPretrainer

try:
    from spanbert_tf.models.span_bert_coreference_resolver import SpanBertCoreferenceResolver
    from spanbert_tf.models.span_bert_coreference_resolver_preprocessor import (
        SpanBertCoreferenceResolverPreprocessor,
    )
    from spanbert_tf.models.span_bert_masked_lm import SpanBertMaskedLM
    from spanbert_tf.models.span_bert_masked_lm_preprocessor import SpanBertMaskedLMPreprocessor
    from spanbert_tf.models.span_bert_question_answerer import SpanBertQuestionAnswerer
    from spanbert_tf.models.span_bert_question_answerer_preprocessor import (
        SpanBertQuestionAnswererPreprocessor,
    )
    from spanbert_tf.models.span_bert_relation_classifier import SpanBertRelationClassifier
    from spanbert_tf.models.span_bert_relation_classifier_preprocessor import (
        SpanBertRelationClassifierPreprocessor,
    )
    from spanbert_tf.models.span_bert_text_classifier import SpanBertTextClassifier
    from spanbert_tf.models.span_bert_text_classifier_preprocessor import (
        SpanBertTextClassifierPreprocessor,
    )
    from spanbert_tf.models.span_bert_text_embedder import SpanBertTextEmbedder
    from spanbert_tf.models.span_bert_text_embedder_preprocessor import (
        SpanBertTextEmbedderPreprocessor,
    )
    from spanbert_tf.models.span_bert_token_classifier import SpanBertTokenClassifier
    from spanbert_tf.models.span_bert_token_classifier_preprocessor import (
        SpanBertTokenClassifierPreprocessor,
    )
    from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise

__all__ = [
    "SpanBertBackbone",
    "SpanBertCoreferenceResolver",
    "SpanBertCoreferenceResolverPreprocessor",
    "SpanBertMaskedLM",
    "SpanBertMaskedLMPreprocessor",
    "SpanBertPretrainer",
    "SpanBertQuestionAnswerer",
    "SpanBertQuestionAnswererPreprocessor",
    "SpanBertRelationClassifier",
    "SpanBertRelationClassifierPreprocessor",
    "SpanBertTextClassifier",
    "SpanBertTextClassifierPreprocessor",
    "SpanBertTextEmbedder",
    "SpanBertTextEmbedderPreprocessor",
    "SpanBertTokenClassifier",
    "SpanBertTokenClassifierPreprocessor",
    "SpanBertTokenizer",
]
