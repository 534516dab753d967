from .attention_gate import (
    AttentionGate as AttentionGate,
)
from .spatial_gate import (
    SpatialGate as SpatialGate,
)
from .spatial_gate import (
    SpatialSE as SpatialSE,
)
from .spatial_transformer import (
    PoseRegression as PoseRegression,
)
from .spatial_transformer import (
    SpatialTransformer as SpatialTransformer,
)
