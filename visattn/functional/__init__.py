"""The arithmetic of attention: tensors in, tensors out."""
