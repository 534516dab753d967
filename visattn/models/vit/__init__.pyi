from .from_dinov2 import (
    vit_from_dinov2 as vit_from_dinov2,
)
from .from_timm import (
    vit_from_timm as vit_from_timm,
    vit_to_timm as vit_to_timm,
)
from .from_torchvision import (
    vit_from_torchvision as vit_from_torchvision,
    vit_to_torchvision as vit_to_torchvision,
)
from .parts import (
    check_pos_embed_type as check_pos_embed_type,
    create_layers as create_layers,
    create_pool as create_pool,
    create_stem as create_stem,
    interpolate_pos_embed as interpolate_pos_embed,
    layer_attn_types as layer_attn_types,
    padded_size as padded_size,
    prefix_token_roles as prefix_token_roles,
    rotary_embeddings as rotary_embeddings,
    to_2tuple as to_2tuple,
)
from .presets import (
    create_vit as create_vit,
)
from .vision_transformer import (
    VisionTransformer as VisionTransformer,
)
