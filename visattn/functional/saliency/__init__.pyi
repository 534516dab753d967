from .filters import (
    center_surround as center_surround,
)
from .filters import (
    gabor_pairs as gabor_pairs,
)
from .filters import (
    gaussian_pyramid as gaussian_pyramid,
)
from .filters import (
    orientation_energies as orientation_energies,
)
from .filters import (
    resized as resized,
)
from .itti_koch import (
    conspicuity_maps as conspicuity_maps,
)
from .itti_koch import (
    opponents as opponents,
)
from .itti_koch import (
    saliency as saliency,
)
from .itti_koch import (
    salient_paths as salient_paths,
)
from .itti_koch import (
    singled_out as singled_out,
)
from .spectral_residual import (
    spectral_residual as spectral_residual,
)
