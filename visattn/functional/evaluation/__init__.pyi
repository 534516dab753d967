from .faithfulness import (
    curve_area as curve_area,
)
from .faithfulness import (
    first_removed as first_removed,
)
from .faithfulness import (
    mean_ranks as mean_ranks,
)
from .faithfulness import (
    rank_correlation as rank_correlation,
)
from .faithfulness import (
    removal_ranks as removal_ranks,
)
from .localization import (
    energy_inside as energy_inside,
)
from .localization import (
    outline_overlap as outline_overlap,
)
from .localization import (
    peaks as peaks,
)
from .localization import (
    point_hits as point_hits,
)
from .road import (
    linear_imputation as linear_imputation,
)
