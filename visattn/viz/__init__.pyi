from .captions import (
    caption_figure as caption_figure,
    draw_alignment as draw_alignment,
)
from .detections import (
    draw_boxes as draw_boxes,
)
from .figures import (
    Figure as Figure,
    draw_map as draw_map,
)
from .scanpaths import (
    draw_scan_path as draw_scan_path,
)
