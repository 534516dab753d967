from .animation import (
    scan_path_animation as scan_path_animation,
)
from .animation import (
    scan_path_grid_animation as scan_path_grid_animation,
)
from .canvas import (
    ImagePlacement as ImagePlacement,
)
from .canvas import (
    draw_patch as draw_patch,
)
from .canvas import (
    glimpse_mosaic as glimpse_mosaic,
)
from .canvas import (
    patch_to_rgb as patch_to_rgb,
)
from .canvas import (
    place_image as place_image,
)
from .coverage import (
    coverage_panel as coverage_panel,
)
from .panel import (
    glimpse_strip as glimpse_strip,
)
from .panel import (
    scan_path_panel as scan_path_panel,
)
from .path import (
    draw_number_marker as draw_number_marker,
)
from .path import (
    draw_scan_path as draw_scan_path,
)
from .path import (
    glimpse_colors as glimpse_colors,
)
from .probabilities import (
    class_colors as class_colors,
)
from .probabilities import (
    plot_probabilities as plot_probabilities,
)
from .probabilities import (
    top_classes as top_classes,
)
from .record import (
    ScanPathData as ScanPathData,
)
from .record import (
    format_percent as format_percent,
)
