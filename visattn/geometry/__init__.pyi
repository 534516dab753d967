from .affine import (
    Geometry as Geometry,
)
from .placement import (
    GridPlacement as GridPlacement,
)
from .preprocessing import (
    ReverseChannels as ReverseChannels,
    UnsupportedTransform as UnsupportedTransform,
    crop_or_pad as crop_or_pad,
    geometry_of_transform as geometry_of_transform,
    transform_with_geometry as transform_with_geometry,
)
