from .transformers import (
    AttentionCallback as AttentionCallback,
)
