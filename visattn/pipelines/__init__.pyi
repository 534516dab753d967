from .attention_history import (
    AttentionHistory as AttentionHistory,
)
from .captioning import (
    caption as caption,
)
from .detection import (
    detect as detect,
)
from .draw_captions import (
    caption_figure as caption_figure,
    overlay as overlay,
)
from .draw_detections import (
    detection_figure as detection_figure,
)
from .draw_explorer import (
    all_heads_figure as all_heads_figure,
    explorer_html as explorer_html,
)
from .draw_maps import (
    comparison_figure as comparison_figure,
)
from .draw_pages import (
    caption_html as caption_html,
)
from .draw_word_statistics import (
    head_overview_figure as head_overview_figure,
    text_attention_figure as text_attention_figure,
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
    segmentation_figure as segmentation_figure,
)
from .video import (
    caption_video as caption_video,
    overlay_video as overlay_video,
)
from .video_models import (
    VideoExplainer as VideoExplainer,
)
