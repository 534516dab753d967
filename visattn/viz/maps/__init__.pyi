from .colormap import (
    colormap_lut as colormap_lut,
)
from .colormap import (
    negative_palette as negative_palette,
)
from .colormap import (
    overlay_palette as overlay_palette,
)
from .comparison import (
    MethodMap as MethodMap,
)
from .comparison import (
    comparison_panel as comparison_panel,
)
from .comparison import (
    format_range as format_range,
)
from .contours import (
    draw_contours as draw_contours,
)
from .contours import (
    draw_range_contours as draw_range_contours,
)
from .crops import (
    crop_panel as crop_panel,
)
from .crops import (
    draw_crop_frame as draw_crop_frame,
)
from .heads import (
    LayerHeads as LayerHeads,
)
from .heads import (
    head_grid as head_grid,
)
from .heads import (
    head_tile_size as head_tile_size,
)
from .heatmap import (
    map_to_rgba as map_to_rgba,
)
from .heatmap import (
    overlay as overlay,
)
from .heatmap import (
    quantize_levels as quantize_levels,
)
from .legend import (
    draw_legend as draw_legend,
)
from .resize import (
    resize_image as resize_image,
)
from .resize import (
    resize_map as resize_map,
)
