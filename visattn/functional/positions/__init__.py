"""Position encodings: sine-cosine, relative, rotary."""
