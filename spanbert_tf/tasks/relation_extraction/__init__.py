"""The relation between two entities of a sentence, by the pooled [CLS]."""
