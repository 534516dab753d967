from .faithfulness import (
    area_under_curve as area_under_curve,
    average_ranks as average_ranks,
    removal_mask as removal_mask,
    removal_ranks as removal_ranks,
    spearman_correlation as spearman_correlation,
)
from .localization import (
    energy_pointing_game as energy_pointing_game,
    peak_locations as peak_locations,
    pointing_game_hits as pointing_game_hits,
    threshold_iou as threshold_iou,
)
from .road import (
    linear_imputation as linear_imputation,
)
