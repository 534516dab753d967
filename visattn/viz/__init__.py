"""Pictures with attention drawn on them: 8-bit arrays in, 8-bit arrays out."""
