from .attention.linformer import (
    linformer_attention as linformer_attention,
)
from .attention.neighborhood import (
    neighborhood_attention as neighborhood_attention,
)
from .attention.reformer import (
    lsh_attention as lsh_attention,
)
from .attention.scores import (
    additive_scores as additive_scores,
    bounded_additive_scores as bounded_additive_scores,
    concat_scores as concat_scores,
    dot_scores as dot_scores,
    general_scores as general_scores,
    location_scores as location_scores,
)
from .attention.softmax import (
    dot_product_attention as dot_product_attention,
    masked_softmax as masked_softmax,
)
from .attention.window import (
    window_attention as window_attention,
)
from .captioning.beam_search import (
    DecodingConstraints as DecodingConstraints,
    beam_search as beam_search,
)
from .captioning.losses import (
    caption_loss as caption_loss,
    doubly_stochastic_penalty as doubly_stochastic_penalty,
)
from .positions.relative import (
    relative_position_bias as relative_position_bias,
)
from .positions.rotary import (
    apply_rotary as apply_rotary,
)
from .positions.sincos import (
    sincos_pos_embed as sincos_pos_embed,
)
from .reinforce import (
    leave_one_out_advantages as leave_one_out_advantages,
    reinforce_loss as reinforce_loss,
)
from .sampling import (
    affine_sample as affine_sample,
)
