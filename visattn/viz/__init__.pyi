from .maps.colormap import (
    colormap_lut as colormap_lut,
)
from .maps.heatmap import (
    overlay as overlay,
)
