from .attention.cnn import (
    channel_affinity as channel_affinity,
)
from .attention.cnn import (
    crisscross_attention as crisscross_attention,
)
from .attention.cnn import (
    double_attention as double_attention,
)
from .attention.hard import (
    Selection as Selection,
)
from .attention.hard import (
    hard_selection as hard_selection,
)
from .attention.hard import (
    soft_selection as soft_selection,
)
from .attention.linear import (
    linear_attention as linear_attention,
)
from .attention.linear import (
    linear_weights as linear_weights,
)
from .attention.linformer import (
    low_rank_attention as low_rank_attention,
)
from .attention.luong import (
    local_alignment as local_alignment,
)
from .attention.luong import (
    monotonic_centers as monotonic_centers,
)
from .attention.luong import (
    predicted_centers as predicted_centers,
)
from .attention.luong import (
    predictive_alignment as predictive_alignment,
)
from .attention.luong import (
    window_mask as window_mask,
)
from .attention.masks import (
    band_mask as band_mask,
)
from .attention.masks import (
    block_mask as block_mask,
)
from .attention.masks import (
    causal_mask as causal_mask,
)
from .attention.masks import (
    dilated_mask as dilated_mask,
)
from .attention.masks import (
    fixed_mask as fixed_mask,
)
from .attention.masks import (
    from_key_padding as from_key_padding,
)
from .attention.masks import (
    from_lengths as from_lengths,
)
from .attention.masks import (
    global_local_mask as global_local_mask,
)
from .attention.masks import (
    mask_of_keys as mask_of_keys,
)
from .attention.masks import (
    strided_mask as strided_mask,
)
from .attention.neighborhood import (
    check_middle as check_middle,
)
from .attention.neighborhood import (
    neighbor_places as neighbor_places,
)
from .attention.neighborhood import (
    neighborhood_attention as neighborhood_attention,
)
from .attention.reformer import (
    HashedPlaces as HashedPlaces,
)
from .attention.reformer import (
    hash_attention as hash_attention,
)
from .attention.reformer import (
    hash_buckets as hash_buckets,
)
from .attention.scores import (
    additive_scores as additive_scores,
)
from .attention.scores import (
    attended as attended,
)
from .attention.scores import (
    concat_scores as concat_scores,
)
from .attention.scores import (
    content_scores as content_scores,
)
from .attention.scores import (
    dot_scores as dot_scores,
)
from .attention.scores import (
    general_scores as general_scores,
)
from .attention.scores import (
    location_scores as location_scores,
)
from .attention.scores import (
    scaled_dot_scores as scaled_dot_scores,
)
from .attention.softmax import (
    attention_weights as attention_weights,
)
from .attention.softmax import (
    masked_softmax as masked_softmax,
)
from .attention.statistics import (
    attended_distance as attended_distance,
)
from .attention.statistics import (
    head_diversity as head_diversity,
)
from .attention.statistics import (
    received_share as received_share,
)
from .attention.statistics import (
    row_entropy as row_entropy,
)
from .attention.statistics import (
    saturated_share as saturated_share,
)
from .attention.token_groups import (
    TokenGroups as TokenGroups,
)
from .attention.token_groups import (
    group_pairs as group_pairs,
)
from .attention.token_groups import (
    grouped_attention as grouped_attention,
)
from .attention.token_groups import (
    neighbor_groups as neighbor_groups,
)
from .attention.token_groups import (
    window_groups as window_groups,
)
from .attention.token_groups import (
    without_self as without_self,
)
from .attention.window import (
    check_window as check_window,
)
from .attention.window import (
    filled_windows as filled_windows,
)
from .attention.window import (
    rolled_windows as rolled_windows,
)
from .attention.window import (
    slots_of_places as slots_of_places,
)
from .attention.window import (
    unrolled_windows as unrolled_windows,
)
from .attention.window import (
    weights_over_keys as weights_over_keys,
)
from .attention.window import (
    window_attention as window_attention,
)
from .attention.window import (
    window_places as window_places,
)
from .attribution.cam import (
    grad_cam as grad_cam,
)
from .attribution.cam import (
    grad_cam_plus_plus as grad_cam_plus_plus,
)
from .attribution.cam import (
    layer_cam as layer_cam,
)
from .attribution.masks import (
    occlusion_windows as occlusion_windows,
)
from .attribution.masks import (
    random_grids as random_grids,
)
from .attribution.masks import (
    soft_masks as soft_masks,
)
from .attribution.masks import (
    window_masks as window_masks,
)
from .attribution.rollout import (
    fused_heads as fused_heads,
)
from .attribution.rollout import (
    relevance_rows as relevance_rows,
)
from .attribution.rollout import (
    rising_means as rising_means,
)
from .attribution.rollout import (
    rising_weights as rising_weights,
)
from .attribution.rollout import (
    rollout_rows as rollout_rows,
)
from .attribution.rollout import (
    without_weakest as without_weakest,
)
from .captioning.beam_search import (
    BeamSearchOutput as BeamSearchOutput,
)
from .captioning.beam_search import (
    DecodingConstraints as DecodingConstraints,
)
from .captioning.beam_search import (
    Ended as Ended,
)
from .captioning.beam_search import (
    History as History,
)
from .captioning.beam_search import (
    Searchable as Searchable,
)
from .captioning.beam_search import (
    beam_search as beam_search,
)
from .captioning.losses import (
    attention_supervision as attention_supervision,
)
from .captioning.losses import (
    caption_loss as caption_loss,
)
from .captioning.losses import (
    doubly_stochastic_penalty as doubly_stochastic_penalty,
)
from .captioning.losses import (
    packed_rows as packed_rows,
)
from .captioning.losses import (
    packed_targets as packed_targets,
)
from .captioning.sampling import (
    Samples as Samples,
)
from .captioning.sampling import (
    draw_samples as draw_samples,
)
from .evaluation.faithfulness import (
    curve_area as curve_area,
)
from .evaluation.faithfulness import (
    first_removed as first_removed,
)
from .evaluation.faithfulness import (
    mean_ranks as mean_ranks,
)
from .evaluation.faithfulness import (
    rank_correlation as rank_correlation,
)
from .evaluation.faithfulness import (
    removal_ranks as removal_ranks,
)
from .evaluation.localization import (
    energy_inside as energy_inside,
)
from .evaluation.localization import (
    outline_overlap as outline_overlap,
)
from .evaluation.localization import (
    peaks as peaks,
)
from .evaluation.localization import (
    point_hits as point_hits,
)
from .evaluation.road import (
    linear_imputation as linear_imputation,
)
from .gates.branch import (
    branch_shares as branch_shares,
)
from .gates.branch import (
    merged as merged,
)
from .gates.branch import (
    radix_weights as radix_weights,
)
from .gates.channel import (
    channel_styles as channel_styles,
)
from .gates.channel import (
    context_shift as context_shift,
)
from .gates.channel import (
    effective_gate as effective_gate,
)
from .gates.channel import (
    efficient_gate as efficient_gate,
)
from .gates.channel import (
    efficient_kernel as efficient_kernel,
)
from .gates.channel import (
    global_context as global_context,
)
from .gates.channel import (
    squeeze_excitation_gate as squeeze_excitation_gate,
)
from .gates.channel import (
    style_scores as style_scores,
)
from .gates.channel import (
    transformation_gate as transformation_gate,
)
from .gates.combined import (
    axis_pools as axis_pools,
)
from .gates.combined import (
    coordinate_gate as coordinate_gate,
)
from .gates.combined import (
    energy_gate as energy_gate,
)
from .gates.combined import (
    joint_gate as joint_gate,
)
from .gates.combined import (
    mean_max_gate as mean_max_gate,
)
from .gates.combined import (
    strip_means as strip_means,
)
from .gates.combined import (
    triplet_gate as triplet_gate,
)
from .gates.spatial import (
    additive_gate as additive_gate,
)
from .gates.spatial import (
    channel_pools as channel_pools,
)
from .gates.spatial import (
    pooled_gate as pooled_gate,
)
from .gates.spatial import (
    projected_gate as projected_gate,
)
from .gates.spatial import (
    resampled as resampled,
)
from .glimpses.paths import (
    random_paths as random_paths,
)
from .glimpses.paths import (
    raster_paths as raster_paths,
)
from .glimpses.retina import (
    GlimpsePyramid as GlimpsePyramid,
)
from .glimpses.retina import (
    cropped_glimpses as cropped_glimpses,
)
from .glimpses.retina import (
    glimpse_boxes as glimpse_boxes,
)
from .glimpses.retina import (
    glimpse_pyramid as glimpse_pyramid,
)
from .glimpses.retina import (
    sampled_glimpses as sampled_glimpses,
)
from .numerics import (
    at_least_float32 as at_least_float32,
)
from .numerics import (
    gauss_legendre as gauss_legendre,
)
from .numerics import (
    gaussian_blur as gaussian_blur,
)
from .numerics import (
    may_overwrite as may_overwrite,
)
from .numerics import (
    without_autocast as without_autocast,
)
from .pooling import (
    channel_deviations as channel_deviations,
)
from .pooling import (
    channel_means as channel_means,
)
from .pooling import (
    channel_norms as channel_norms,
)
from .pooling import (
    maxima as maxima,
)
from .pooling import (
    means as means,
)
from .positions.relative import (
    relative_biases as relative_biases,
)
from .positions.relative import (
    relative_offsets as relative_offsets,
)
from .positions.relative import (
    relative_position_scores as relative_position_scores,
)
from .positions.rotary import (
    grid_rotations as grid_rotations,
)
from .positions.rotary import (
    rotated as rotated,
)
from .positions.sincos import (
    falling_frequencies as falling_frequencies,
)
from .positions.sincos import (
    resampled_positions as resampled_positions,
)
from .positions.sincos import (
    sine_positions as sine_positions,
)
from .reinforce import (
    explained_variance as explained_variance,
)
from .reinforce import (
    gaussian_entropy as gaussian_entropy,
)
from .reinforce import (
    gaussian_log_density as gaussian_log_density,
)
from .reinforce import (
    leave_one_out as leave_one_out,
)
from .reinforce import (
    policy_loss as policy_loss,
)
from .reinforce import (
    rewards_to_go as rewards_to_go,
)
from .reinforce import (
    rollout_loss as rollout_loss,
)
from .reinforce import (
    truth_told as truth_told,
)
from .saliency.filters import (
    center_surround as center_surround,
)
from .saliency.filters import (
    gabor_pairs as gabor_pairs,
)
from .saliency.filters import (
    gaussian_pyramid as gaussian_pyramid,
)
from .saliency.filters import (
    orientation_energies as orientation_energies,
)
from .saliency.filters import (
    resized as resized,
)
from .saliency.itti_koch import (
    conspicuity_maps as conspicuity_maps,
)
from .saliency.itti_koch import (
    opponents as opponents,
)
from .saliency.itti_koch import (
    salient_paths as salient_paths,
)
from .saliency.itti_koch import (
    singled_out as singled_out,
)
from .saliency.spectral_residual import (
    spectral_residual as spectral_residual,
)
from .sampling import (
    affine_sampled as affine_sampled,
)
from .sampling import (
    coarse_pools as coarse_pools,
)
from .sampling import (
    pixel_centers as pixel_centers,
)
from .sampling import (
    sampled_corners as sampled_corners,
)
from .sampling import (
    sampled_region as sampled_region,
)
from .tokens import (
    diagonal_shifts as diagonal_shifts,
)
from .tokens import (
    random_tokens as random_tokens,
)
from .tokens import (
    weights_in_place as weights_in_place,
)
