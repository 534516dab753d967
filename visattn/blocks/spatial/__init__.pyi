from .attention_gate import (
    AttentionGate as AttentionGate,
)
from .spatial_gate import (
    SpatialGate as SpatialGate,
    SpatialSE as SpatialSE,
)
from .spatial_transformer import (
    LocalizationNetwork as LocalizationNetwork,
    SpatialTransformer as SpatialTransformer,
)
