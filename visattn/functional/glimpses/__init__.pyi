from .paths import (
    object_scanpaths as object_scanpaths,
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
from .rewards import (
    classification_rewards as classification_rewards,
    label_per_glimpse as label_per_glimpse,
    label_sequences as label_sequences,
    log_prob_before_glimpses as log_prob_before_glimpses,
    rewarded_actions as rewarded_actions,
    true_class_log_prob as true_class_log_prob,
)
