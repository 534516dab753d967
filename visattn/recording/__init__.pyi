from .model_info import (
    AttentionLayer as AttentionLayer,
    ExplainedModel as ExplainedModel,
    FeatureLayer as FeatureLayer,
    ModelInfo as ModelInfo,
)
from .recorder import (
    Recording as Recording,
    record as record,
)
