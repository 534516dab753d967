"""Attention: score functions, softmax, masks, and the efficient variants."""
