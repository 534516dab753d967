from .animation import (
    scan_path_animation as scan_path_animation,
    scan_path_grid_animation as scan_path_grid_animation,
)
from .canvas import (
    ImagePlacement as ImagePlacement,
    draw_patch as draw_patch,
    glimpse_mosaic as glimpse_mosaic,
    patch_to_rgb as patch_to_rgb,
    place_image as place_image,
)
from .coverage import (
    coverage_panel as coverage_panel,
)
from .panel import (
    glimpse_strip as glimpse_strip,
    scan_path_panel as scan_path_panel,
)
from .path import (
    contrasting_color as contrasting_color,
    draw_number_marker as draw_number_marker,
    draw_scan_path as draw_scan_path,
    glimpse_colors as glimpse_colors,
)
from .probabilities import (
    class_colors as class_colors,
    plot_probabilities as plot_probabilities,
    top_classes as top_classes,
)
from .record import (
    ReadLabel as ReadLabel,
    ScanPathData as ScanPathData,
    format_percent as format_percent,
    label_text as label_text,
    read_labels as read_labels,
)
