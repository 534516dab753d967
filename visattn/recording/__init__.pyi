from .model_info import (
    AttentionLayer as AttentionLayer,
    FeatureLayer as FeatureLayer,
    ModelInfo as ModelInfo,
    Subject as Subject,
)
from .recorder import (
    Recording as Recording,
    record as record,
)
