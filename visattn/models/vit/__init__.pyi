from .exchange import (
    ExchangeableClassifier as ExchangeableClassifier,
)
from .from_dinov2 import (
    dinov2_parts as dinov2_parts,
)
from .from_timm import (
    timm_model as timm_model,
)
from .from_timm import (
    timm_parts as timm_parts,
)
from .from_torchvision import (
    torchvision_model as torchvision_model,
)
from .from_torchvision import (
    torchvision_parts as torchvision_parts,
)
from .parts import (
    attention_kinds as attention_kinds,
)
from .parts import (
    both as both,
)
from .parts import (
    check_positions as check_positions,
)
from .parts import (
    encoder_layers as encoder_layers,
)
from .parts import (
    learned_places as learned_places,
)
from .parts import (
    pool_layer as pool_layer,
)
from .parts import (
    prefix_roles as prefix_roles,
)
from .parts import (
    stem_layer as stem_layer,
)
from .parts import (
    token_rotations as token_rotations,
)
from .parts import (
    whole_size as whole_size,
)
from .presets import (
    vit as vit,
)
from .vision_transformer import (
    VisionTransformer as VisionTransformer,
)
