from .captions import (
    caption_figure as caption_figure,
)
from .detections import (
    detection_figure as detection_figure,
)
from .figures import (
    figure as figure,
)
from .heads import (
    all_heads_figure as all_heads_figure,
)
from .heatmap import (
    DrawOptions as DrawOptions,
    colormap_lut as colormap_lut,
)
from .html.caption_page import (
    caption_html as caption_html,
)
from .html.explorer_page import (
    explorer_html as explorer_html,
)
from .maps import (
    overlay as overlay,
)
from .rendering import (
    Figure as Figure,
)
from .scanpaths.animation import (
    glimpse_animation as glimpse_animation,
    glimpse_wall as glimpse_wall,
)
from .scanpaths.panel import (
    glimpse_panel as glimpse_panel,
)
from .segmentation import (
    segmentation_figure as segmentation_figure,
)
from .text_attention import (
    head_overview_figure as head_overview_figure,
    text_attention_figure as text_attention_figure,
)
