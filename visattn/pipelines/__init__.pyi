from .attention_history import (
    AttentionHistory as AttentionHistory,
)
from .captioning import (
    caption as caption,
)
from .detection import (
    detect as detect,
)
from .explain_queries import (
    explain_queries as explain_queries,
)
from .explainer import (
    Explainer as Explainer,
    explain as explain,
    methods_for as methods_for,
)
from .graph_export import (
    export_graph as export_graph,
    read_graph_metadata as read_graph_metadata,
)
from .layer_attention import (
    record_layers as record_layers,
)
from .model_card import (
    ModelCard as ModelCard,
)
from .model_io import (
    load as load,
    load_blocks as load_blocks,
    load_model as load_model,
    save as save,
    save_blocks as save_blocks,
)
from .question_answering import (
    ask as ask,
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
