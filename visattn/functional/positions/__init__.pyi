from .relative import (
    relative_biases as relative_biases,
)
from .relative import (
    relative_offsets as relative_offsets,
)
from .relative import (
    relative_position_scores as relative_position_scores,
)
from .rotary import (
    grid_rotations as grid_rotations,
)
from .rotary import (
    rotated as rotated,
)
from .sincos import (
    falling_frequencies as falling_frequencies,
)
from .sincos import (
    resampled_positions as resampled_positions,
)
from .sincos import (
    sine_positions as sine_positions,
)
