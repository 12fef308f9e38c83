"""Files of text: formats, sentences, word pieces and vocabularies."""
