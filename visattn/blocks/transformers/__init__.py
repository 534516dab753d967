"""Layers of Vision Transformers: from pictures to tokens, among tokens, and from tokens to one."""
