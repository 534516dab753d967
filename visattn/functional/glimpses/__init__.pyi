from .paths import (
    random_paths as random_paths,
)
from .paths import (
    raster_paths as raster_paths,
)
from .retina import (
    GlimpsePyramid as GlimpsePyramid,
)
from .retina import (
    cropped_glimpses as cropped_glimpses,
)
from .retina import (
    glimpse_boxes as glimpse_boxes,
)
from .retina import (
    glimpse_pyramid as glimpse_pyramid,
)
from .retina import (
    sampled_glimpses as sampled_glimpses,
)
