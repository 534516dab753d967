from .model_info import (
    AttentionLayer as AttentionLayer,
    FeatureLayer as FeatureLayer,
    ModelInfo as ModelInfo,
)
from .recorder import (
    Recording as Recording,
)
from .subject import (
    Subject as Subject,
)
