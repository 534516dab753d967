from .maps.colormap import (
    colormap_lut as colormap_lut,
)
from .maps.heatmap import (
    overlay as overlay,
)
from .scanpaths.animation import (
    glimpse_animation as glimpse_animation,
    glimpse_wall as glimpse_wall,
)
from .scanpaths.panel import (
    glimpse_panel as glimpse_panel,
)
