from .animation import (
    scan_animation as scan_animation,
)
from .coverage import (
    coverage_panel as coverage_panel,
)
from .mosaic import (
    colored as colored,
)
from .mosaic import (
    mosaic as mosaic,
)
from .mosaic import (
    patch_tile as patch_tile,
)
from .panel import (
    glimpse_strip as glimpse_strip,
)
from .panel import (
    scan_panel as scan_panel,
)
from .path import (
    draw_number as draw_number,
)
from .path import (
    scan_path as scan_path,
)
from .path import (
    time_colors as time_colors,
)
from .probabilities import (
    class_colors as class_colors,
)
from .probabilities import (
    probability_plot as probability_plot,
)
from .probabilities import (
    shown_classes as shown_classes,
)
from .record import (
    ShownScan as ShownScan,
)
from .record import (
    per_cent as per_cent,
)
from .view import (
    ScanView as ScanView,
)
from .view import (
    scan_view as scan_view,
)
from .wall import (
    scan_wall as scan_wall,
)
