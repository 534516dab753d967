from .captions import (
    alignment_figure as alignment_figure,
    caption_figure as caption_figure,
    draw_alignment as draw_alignment,
)
from .detections import (
    detection_figure as detection_figure,
    draw_boxes as draw_boxes,
)
from .figures import (
    Figure as Figure,
    draw_map as draw_map,
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
from .scanpaths import (
    draw_scan_path as draw_scan_path,
    glimpse_figure as glimpse_figure,
)
from .segmentation import (
    segmentation_figure as segmentation_figure,
)
