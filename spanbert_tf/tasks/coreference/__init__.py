"""Coreference resolution (SpanBERT, section 5.1.2)."""
