from .attention_panels import (
    AttentionPanels as AttentionPanels,
)
from .scanpath import (
    glimpses as glimpses,
)
from .video import (
    overlay_video as overlay_video,
)
