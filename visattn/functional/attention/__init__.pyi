from .cnn import (
    channel_affinity as channel_affinity,
)
from .cnn import (
    crisscross_attention as crisscross_attention,
)
from .cnn import (
    double_attention as double_attention,
)
from .hard import (
    Selection as Selection,
)
from .hard import (
    hard_selection as hard_selection,
)
from .hard import (
    soft_selection as soft_selection,
)
from .linear import (
    linear_attention as linear_attention,
)
from .linear import (
    linear_weights as linear_weights,
)
from .linformer import (
    low_rank_attention as low_rank_attention,
)
from .luong import (
    local_alignment as local_alignment,
)
from .luong import (
    monotonic_centers as monotonic_centers,
)
from .luong import (
    predicted_centers as predicted_centers,
)
from .luong import (
    predictive_alignment as predictive_alignment,
)
from .luong import (
    window_mask as window_mask,
)
from .masks import (
    band_mask as band_mask,
)
from .masks import (
    block_mask as block_mask,
)
from .masks import (
    causal_mask as causal_mask,
)
from .masks import (
    dilated_mask as dilated_mask,
)
from .masks import (
    fixed_mask as fixed_mask,
)
from .masks import (
    from_key_padding as from_key_padding,
)
from .masks import (
    from_lengths as from_lengths,
)
from .masks import (
    global_local_mask as global_local_mask,
)
from .masks import (
    mask_of_keys as mask_of_keys,
)
from .masks import (
    strided_mask as strided_mask,
)
from .neighborhood import (
    check_middle as check_middle,
)
from .neighborhood import (
    neighbor_places as neighbor_places,
)
from .neighborhood import (
    neighborhood_attention as neighborhood_attention,
)
from .reformer import (
    HashedPlaces as HashedPlaces,
)
from .reformer import (
    hash_attention as hash_attention,
)
from .reformer import (
    hash_buckets as hash_buckets,
)
from .scores import (
    additive_scores as additive_scores,
)
from .scores import (
    attended as attended,
)
from .scores import (
    concat_scores as concat_scores,
)
from .scores import (
    content_scores as content_scores,
)
from .scores import (
    dot_scores as dot_scores,
)
from .scores import (
    general_scores as general_scores,
)
from .scores import (
    location_scores as location_scores,
)
from .scores import (
    scaled_dot_scores as scaled_dot_scores,
)
from .softmax import (
    attention as attention,
)
from .softmax import (
    attention_weights as attention_weights,
)
from .softmax import (
    masked_softmax as masked_softmax,
)
from .statistics import (
    attended_distance as attended_distance,
)
from .statistics import (
    head_diversity as head_diversity,
)
from .statistics import (
    received_share as received_share,
)
from .statistics import (
    row_entropy as row_entropy,
)
from .statistics import (
    saturated_share as saturated_share,
)
from .token_groups import (
    TokenGroups as TokenGroups,
)
from .token_groups import (
    group_pairs as group_pairs,
)
from .token_groups import (
    grouped_attention as grouped_attention,
)
from .token_groups import (
    neighbor_groups as neighbor_groups,
)
from .token_groups import (
    window_groups as window_groups,
)
from .token_groups import (
    without_self as without_self,
)
from .window import (
    check_window as check_window,
)
from .window import (
    filled_windows as filled_windows,
)
from .window import (
    rolled_windows as rolled_windows,
)
from .window import (
    slots_of_places as slots_of_places,
)
from .window import (
    unrolled_windows as unrolled_windows,
)
from .window import (
    weights_over_keys as weights_over_keys,
)
from .window import (
    window_attention as window_attention,
)
from .window import (
    window_places as window_places,
)
