from .timm import (
    attn_layer as attn_layer,
    register_models as register_models,
)
from .transformers import (
    AttentionCallback as AttentionCallback,
)
