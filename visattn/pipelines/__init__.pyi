from .answering import (
    ask as ask,
)
from .attention_panels import (
    AttentionPanels as AttentionPanels,
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
    overlay_video as overlay_video,
)
