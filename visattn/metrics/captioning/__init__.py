"""BLEU, ROUGE-L, CIDEr-D, METEOR and SPICE of captions."""
