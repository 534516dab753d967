"""Scores of captions, in plain Python: tokens, BLEU, ROUGE-L, CIDEr-D."""
