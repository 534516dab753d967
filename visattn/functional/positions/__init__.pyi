from .relative import (
    relative_position_bias as relative_position_bias,
    relative_position_index as relative_position_index,
    relative_position_scores as relative_position_scores,
)
from .rotary import (
    apply_rotary as apply_rotary,
    rotary_cos_sin as rotary_cos_sin,
)
from .sincos import (
    inverse_frequencies as inverse_frequencies,
    resample_pos_embed as resample_pos_embed,
    sincos_pos_embed as sincos_pos_embed,
)
