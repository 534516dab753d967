from .paths import (
    random_scanpaths as random_scanpaths,
    raster_scanpaths as raster_scanpaths,
)
from .retina import (
    GlimpsePyramid as GlimpsePyramid,
    crop_glimpses as crop_glimpses,
    glimpse_boxes as glimpse_boxes,
    glimpse_pyramid as glimpse_pyramid,
    sample_glimpses as sample_glimpses,
)
