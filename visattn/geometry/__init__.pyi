from .affine import (
    Geometry as Geometry,
)
from .preprocessing import (
    followed as followed,
)
from .preprocessing import (
    geometry_of as geometry_of,
)
from .preprocessing import (
    windowed as windowed,
)
