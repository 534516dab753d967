from .preprocessing import (
    geometry_of_transform as geometry_of_transform,
    transform_with_geometry as transform_with_geometry,
)
