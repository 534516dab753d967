"""Vision transformers, their presets and conversions."""
