from .captions import (
    caption_figure as caption_figure,
)
from .detections import (
    detection_figure as detection_figure,
)
from .figures import (
    figure as figure,
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
from .scanpaths.panel import (
    glimpse_panel as glimpse_panel,
)
from .segmentation import (
    segmentation_figure as segmentation_figure,
)
