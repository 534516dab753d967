from .captions.figure import (
    caption_figure as caption_figure,
)
from .captions.head_tables import (
    head_overview_figure as head_overview_figure,
)
from .captions.text_matrix import (
    text_attention_figure as text_attention_figure,
)
from .detection.panel import (
    detection_figure as detection_figure,
)
from .html.caption_page import (
    caption_html as caption_html,
)
from .html.explorer_page import (
    explorer_html as explorer_html,
)
from .maps.colormap import (
    colormap_lut as colormap_lut,
)
from .maps.comparison import (
    comparison_figure as comparison_figure,
)
from .maps.heads import (
    all_heads_figure as all_heads_figure,
)
from .maps.options import (
    DrawOptions as DrawOptions,
)
from .maps.placed import (
    overlay as overlay,
)
from .maps.segmentation import (
    segmentation_figure as segmentation_figure,
)
from .scanpaths.animation import (
    glimpse_animation as glimpse_animation,
    glimpse_wall as glimpse_wall,
)
from .scanpaths.panel import (
    glimpse_panel as glimpse_panel,
)
