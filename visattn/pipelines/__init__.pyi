from .attention_panels import (
    AttentionPanels as AttentionPanels,
)
from .scanpath import (
    glimpses as glimpses,
)
