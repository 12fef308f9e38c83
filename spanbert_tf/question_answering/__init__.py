"""From logits to answers, scores and reports."""
