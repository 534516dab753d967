"""Training of sequence recognizers."""
