from .cnn import (
    channel_affinity as channel_affinity,
    criss_cross_attention as criss_cross_attention,
    double_attention as double_attention,
)
from .hard import (
    HardAttentionOutput as HardAttentionOutput,
    hard_attention as hard_attention,
    soft_attention as soft_attention,
)
from .linear import (
    linear_attention as linear_attention,
    linear_attention_weights as linear_attention_weights,
)
from .linformer import (
    linformer_attention as linformer_attention,
)
from .luong import (
    local_alignment as local_alignment,
    monotonic_centers as monotonic_centers,
    predicted_centers as predicted_centers,
    predictive_alignment as predictive_alignment,
    window_mask as window_mask,
)
from .masks import (
    band_mask as band_mask,
    block_mask as block_mask,
    causal_mask as causal_mask,
    dilated_mask as dilated_mask,
    fixed_mask as fixed_mask,
    global_local_mask as global_local_mask,
    key_mask as key_mask,
    key_padding_to_mask as key_padding_to_mask,
    length_mask as length_mask,
    strided_mask as strided_mask,
)
from .neighborhood import (
    check_odd_kernel as check_odd_kernel,
    neighborhood_attention as neighborhood_attention,
    neighborhood_indices as neighborhood_indices,
)
from .reformer import (
    LSHChunks as LSHChunks,
    lsh_attention as lsh_attention,
    lsh_buckets as lsh_buckets,
)
from .scores import (
    additive_scores as additive_scores,
    concat_scores as concat_scores,
    content_scores as content_scores,
    context_vector as context_vector,
    dot_scores as dot_scores,
    general_scores as general_scores,
    location_scores as location_scores,
    scaled_dot_scores as scaled_dot_scores,
)
from .softmax import (
    dot_product_attention as dot_product_attention,
    dot_product_attention_weights as dot_product_attention_weights,
    masked_softmax as masked_softmax,
)
from .statistics import (
    attention_entropy as attention_entropy,
    head_diversity as head_diversity,
    mean_attention_distance as mean_attention_distance,
    received_attention as received_attention,
    saturated_fraction as saturated_fraction,
)
from .token_groups import (
    TokenGroups as TokenGroups,
    dense_mask_and_bias as dense_mask_and_bias,
    exclude_self as exclude_self,
    grouped_attention as grouped_attention,
    neighborhood_groups as neighborhood_groups,
    window_groups as window_groups,
)
from .window import (
    check_window as check_window,
    dense_to_window_weights as dense_to_window_weights,
    padded_window_indices as padded_window_indices,
    scatter_weights as scatter_weights,
    window_attention as window_attention,
    window_indices as window_indices,
    window_slots as window_slots,
    window_weights_to_dense as window_weights_to_dense,
)
