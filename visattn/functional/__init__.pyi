from .attention import (
    additive_scores as additive_scores,
    dot_product_attention as dot_product_attention,
    dot_product_attention_weights as dot_product_attention_weights,
    masked_softmax as masked_softmax,
)
from .beams import (
    beam_search as beam_search,
)
from .efficient import (
    linformer_attention as linformer_attention,
    lsh_attention as lsh_attention,
    lsh_buckets as lsh_buckets,
    neighborhood_attention as neighborhood_attention,
    strided_attention as strided_attention,
)
from .reinforce import (
    reinforce_loss as reinforce_loss,
)
