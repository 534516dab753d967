from .model_info import (
    AttentionLayer as AttentionLayer,
    ExplainedModel as ExplainedModel,
    FeatureLayer as FeatureLayer,
    ModelInfo as ModelInfo,
)
from .receptive_field import (
    trace_grids as trace_grids,
)
from .recorder import (
    Recording as Recording,
    record as record,
)
