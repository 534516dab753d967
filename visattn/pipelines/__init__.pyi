from .answering import (
    ask as ask,
)
from .attention_history import (
    AttentionHistory as AttentionHistory,
)
from .captioning import (
    caption as caption,
)
from .detection import (
    detect as detect,
)
from .explainer import (
    Explainer as Explainer,
    explain as explain,
    methods_for as methods_for,
)
from .layer_attention import (
    record_layers as record_layers,
)
from .scanpath import (
    glimpses as glimpses,
)
from .segmentation import (
    segment as segment,
)
from .video import (
    caption_video as caption_video,
    overlay_video as overlay_video,
)
from .video_models import (
    VideoExplainer as VideoExplainer,
)
