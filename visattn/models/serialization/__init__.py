"""Models as safetensors files: configuration, shapes, weights."""
