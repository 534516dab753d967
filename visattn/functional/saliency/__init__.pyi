from .filters import (
    center_surround as center_surround,
    gabor_energy as gabor_energy,
    gabor_filters as gabor_filters,
    gaussian_pyramid as gaussian_pyramid,
    resize_antialiased as resize_antialiased,
)
from .itti_koch import (
    color_opponency as color_opponency,
    conspicuity_maps as conspicuity_maps,
    itti_koch_saliency as itti_koch_saliency,
    normalize_peaks as normalize_peaks,
    saliency_scanpaths as saliency_scanpaths,
)
from .spectral_residual import (
    spectral_residual as spectral_residual,
)
