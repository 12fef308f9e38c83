"""NLTK's Punkt with the parameters that this package ships: the oracle of sentences."""

import functools

from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

from spanbert_tf.text.sentences import punkt_splitter


@functools.cache
def tokenizer_of_nltk(language):
    """NLTK's tokenizer with our parameters of a language."""
    splitter = punkt_splitter(language)
    parameters = PunktParameters()
    parameters.abbrev_types = set(splitter.abbreviations)
    parameters.collocations = set(splitter.collocations)
    parameters.sent_starters = set(splitter.sentence_starters)
    parameters.ortho_context.update(splitter.orthographic_contexts)
    return PunktSentenceTokenizer(parameters)
