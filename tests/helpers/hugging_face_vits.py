"""Small Vision Transformers of Hugging Face."""

from typing import Any

import transformers

PLAIN: dict[str, Any] = {
    "image_size": (48, 80), "patch_size": 8, "hidden_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 16,
}  # fmt: skip


def hugging_face_vit(**options: Any) -> Any:
    """Return a ViT with random weights, of these options beyond the plain ones."""
    config = transformers.ViTConfig(**{**PLAIN, **options})
    return transformers.ViTForImageClassification(config).eval()
