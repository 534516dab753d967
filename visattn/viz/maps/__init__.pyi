from .colormap import (
    colormap_lut as colormap_lut,
    negative_palette as negative_palette,
    overlay_palette as overlay_palette,
)
from .comparison import (
    MethodMap as MethodMap,
    comparison_panel as comparison_panel,
    format_range as format_range,
)
from .contours import (
    draw_contours as draw_contours,
    draw_range_contours as draw_range_contours,
)
from .crops import (
    crop_panel as crop_panel,
    draw_crop_frame as draw_crop_frame,
)
from .heads import (
    LayerHeads as LayerHeads,
    head_grid as head_grid,
    head_tile_size as head_tile_size,
)
from .heatmap import (
    map_to_rgba as map_to_rgba,
    overlay as overlay,
    quantize_levels as quantize_levels,
)
from .legend import (
    draw_legend as draw_legend,
)
from .resize import (
    resize_image as resize_image,
    resize_map as resize_map,
)
