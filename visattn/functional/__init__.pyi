from .attention.cnn import (
    channel_affinity as channel_affinity,
    criss_cross_attention as criss_cross_attention,
    double_attention as double_attention,
)
from .attention.coattention import (
    CoattentionOutput as CoattentionOutput,
    guided_attention as guided_attention,
    parallel_coattention as parallel_coattention,
)
from .attention.deformable import (
    deformable_attention as deformable_attention,
    deformable_splat as deformable_splat,
)
from .attention.hard import (
    HardAttentionOutput as HardAttentionOutput,
    hard_attention as hard_attention,
    soft_attention as soft_attention,
)
from .attention.linear import (
    linear_attention as linear_attention,
    linear_attention_weights as linear_attention_weights,
)
from .attention.linformer import (
    linformer_attention as linformer_attention,
)
from .attention.luong import (
    local_alignment as local_alignment,
    monotonic_centers as monotonic_centers,
    predicted_centers as predicted_centers,
    predictive_alignment as predictive_alignment,
    window_mask as window_mask,
)
from .attention.masks import (
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
from .attention.neighborhood import (
    check_odd_kernel as check_odd_kernel,
    neighborhood_attention as neighborhood_attention,
    neighborhood_indices as neighborhood_indices,
)
from .attention.reformer import (
    LSHChunks as LSHChunks,
    lsh_attention as lsh_attention,
    lsh_buckets as lsh_buckets,
)
from .attention.scores import (
    additive_scores as additive_scores,
    bounded_additive_scores as bounded_additive_scores,
    concat_scores as concat_scores,
    content_scores as content_scores,
    context_vector as context_vector,
    dot_scores as dot_scores,
    general_scores as general_scores,
    location_scores as location_scores,
    scaled_dot_scores as scaled_dot_scores,
)
from .attention.softmax import (
    dot_product_attention as dot_product_attention,
    dot_product_attention_weights as dot_product_attention_weights,
    masked_softmax as masked_softmax,
)
from .attention.statistics import (
    attention_entropy as attention_entropy,
    head_diversity as head_diversity,
    mean_attention_distance as mean_attention_distance,
    received_attention as received_attention,
    saturated_fraction as saturated_fraction,
)
from .attention.token_groups import (
    TokenGroups as TokenGroups,
    dense_mask_and_bias as dense_mask_and_bias,
    exclude_self as exclude_self,
    grouped_attention as grouped_attention,
    neighborhood_groups as neighborhood_groups,
    window_groups as window_groups,
)
from .attention.window import (
    check_window as check_window,
    dense_to_window_weights as dense_to_window_weights,
    padded_window_indices as padded_window_indices,
    scatter_weights as scatter_weights,
    window_attention as window_attention,
    window_indices as window_indices,
    window_slots as window_slots,
    window_weights_to_dense as window_weights_to_dense,
)
from .attribution.attention_flow import attention_flow as attention_flow
from .attribution.cam import (
    ablation_cam as ablation_cam,
    channel_masks as channel_masks,
    eigen_cam as eigen_cam,
    grad_cam as grad_cam,
    grad_cam_plus_plus as grad_cam_plus_plus,
    hires_cam as hires_cam,
    layer_cam as layer_cam,
    score_cam as score_cam,
    x_grad_cam as x_grad_cam,
)
from .attribution.full_grad import contribution_map as contribution_map
from .attribution.masks import (
    occlusion_windows as occlusion_windows,
    rise_grids as rise_grids,
    rise_masks as rise_masks,
    window_masks as window_masks,
)
from .attribution.rollout import (
    attention_rollout as attention_rollout,
    discard_lowest as discard_lowest,
    fuse_heads as fuse_heads,
    gradient_rollout_weights as gradient_rollout_weights,
    positive_grad_times_attention as positive_grad_times_attention,
    propagate_decoder_relevance as propagate_decoder_relevance,
    propagate_relevance as propagate_relevance,
)
from .boxes import (
    box_area as box_area,
    box_iou as box_iou,
    center_to_corners as center_to_corners,
    corners_to_center as corners_to_center,
    generalized_box_iou as generalized_box_iou,
    inverse_sigmoid as inverse_sigmoid,
)
from .captioning.beam_search import (
    BeamHistory as BeamHistory,
    BeamSearchOutput as BeamSearchOutput,
    BeamSearchState as BeamSearchState,
    DecodingConstraints as DecodingConstraints,
    FinishedHypotheses as FinishedHypotheses,
    beam_search as beam_search,
)
from .captioning.hard_attention import (
    HardAttentionLosses as HardAttentionLosses,
    hard_attention_losses as hard_attention_losses,
    multi_sample_bound as multi_sample_bound,
    place_rewards as place_rewards,
)
from .captioning.losses import (
    attention_mass_loss as attention_mass_loss,
    attention_supervision_loss as attention_supervision_loss,
    caption_loss as caption_loss,
    doubly_stochastic_penalty as doubly_stochastic_penalty,
    pack_targets as pack_targets,
)
from .captioning.packing import (
    WordPacking as WordPacking,
    pack_words as pack_words,
    packed_indices as packed_indices,
)
from .captioning.sampling import (
    SampledCaptions as SampledCaptions,
    sample_captions as sample_captions,
    sample_categorical as sample_categorical,
)
from .evaluation.faithfulness import (
    area_under_curve as area_under_curve,
    average_ranks as average_ranks,
    removal_mask as removal_mask,
    removal_ranks as removal_ranks,
    spearman_correlation as spearman_correlation,
)
from .evaluation.localization import (
    energy_pointing_game as energy_pointing_game,
    peak_locations as peak_locations,
    pointing_game_hits as pointing_game_hits,
    threshold_iou as threshold_iou,
)
from .evaluation.road import (
    linear_imputation as linear_imputation,
)
from .gates.branch import (
    branch_softmax as branch_softmax,
    merge_branches as merge_branches,
    radix_softmax as radix_softmax,
)
from .gates.channel import (
    eca_gate as eca_gate,
    eca_kernel_size as eca_kernel_size,
    effective_se_gate as effective_se_gate,
    gct_gate as gct_gate,
    global_context_pool as global_context_pool,
    global_context_transform as global_context_transform,
    squeeze_excitation_gate as squeeze_excitation_gate,
    style_pool as style_pool,
    style_scores as style_scores,
)
from .gates.combined import (
    bam_gate as bam_gate,
    cbam_channel_gate as cbam_channel_gate,
    coordinate_gate as coordinate_gate,
    simam_gate as simam_gate,
    strip_pools as strip_pools,
    triplet_gate as triplet_gate,
    z_pool as z_pool,
)
from .gates.spatial import (
    additive_gate as additive_gate,
    cbam_spatial_gate as cbam_spatial_gate,
    channel_pool as channel_pool,
    resize_bilinear as resize_bilinear,
    spatial_squeeze_gate as spatial_squeeze_gate,
)
from .glimpses.paths import (
    object_scanpaths as object_scanpaths,
    random_scanpaths as random_scanpaths,
    raster_scanpaths as raster_scanpaths,
)
from .glimpses.retina import (
    GlimpsePyramid as GlimpsePyramid,
    crop_glimpses as crop_glimpses,
    glimpse_boxes as glimpse_boxes,
    glimpse_pyramid as glimpse_pyramid,
    sample_glimpses as sample_glimpses,
)
from .glimpses.rewards import (
    classification_rewards as classification_rewards,
    label_per_glimpse as label_per_glimpse,
    label_sequences as label_sequences,
    log_prob_before_glimpses as log_prob_before_glimpses,
    rewarded_actions as rewarded_actions,
    true_class_log_prob as true_class_log_prob,
)
from .matching import (
    linear_sum_assignment as linear_sum_assignment,
)
from .numerics import (
    at_least_float32 as at_least_float32,
    can_write_inplace as can_write_inplace,
    gauss_legendre as gauss_legendre,
    gaussian_blur as gaussian_blur,
    without_autocast as without_autocast,
)
from .pooling import (
    channel_means as channel_means,
    channel_norms as channel_norms,
    channel_stds as channel_stds,
    fast_amax as fast_amax,
    fast_mean as fast_mean,
)
from .positions.relative import (
    relative_position_bias as relative_position_bias,
    relative_position_index as relative_position_index,
    relative_position_scores as relative_position_scores,
)
from .positions.rotary import (
    apply_rotary as apply_rotary,
    rotary_cos_sin as rotary_cos_sin,
)
from .positions.sincos import (
    inverse_frequencies as inverse_frequencies,
    resample_pos_embed as resample_pos_embed,
    sincos_pos_embed as sincos_pos_embed,
)
from .reinforce import (
    categorical_entropy as categorical_entropy,
    categorical_log_prob as categorical_log_prob,
    entropy_rewards as entropy_rewards,
    explained_variance as explained_variance,
    gaussian_entropy as gaussian_entropy,
    gaussian_log_prob as gaussian_log_prob,
    leave_one_out_advantages as leave_one_out_advantages,
    reinforce_loss as reinforce_loss,
    rewards_to_go as rewards_to_go,
    self_critical_advantages as self_critical_advantages,
    update_moving_average as update_moving_average,
    value_baseline_loss as value_baseline_loss,
)
from .relations import (
    pairwise_layer as pairwise_layer,
)
from .saliency.filters import (
    center_surround as center_surround,
    gabor_energy as gabor_energy,
    gabor_filters as gabor_filters,
    gaussian_pyramid as gaussian_pyramid,
    resize_antialiased as resize_antialiased,
)
from .saliency.itti_koch import (
    color_opponency as color_opponency,
    conspicuity_maps as conspicuity_maps,
    itti_koch_saliency as itti_koch_saliency,
    normalize_peaks as normalize_peaks,
    saliency_scanpaths as saliency_scanpaths,
)
from .saliency.spectral_residual import (
    spectral_residual as spectral_residual,
)
from .sampling import (
    affine_corners as affine_corners,
    affine_coverage as affine_coverage,
    affine_sample as affine_sample,
    pixel_centers as pixel_centers,
    tent_pool as tent_pool,
)
from .segmentation import (
    dice_loss as dice_loss,
    focal_loss as focal_loss,
    gate_supervision_loss as gate_supervision_loss,
    pixel_cross_entropy as pixel_cross_entropy,
)
from .tokens import (
    diagonal_shifts as diagonal_shifts,
    random_token_indices as random_token_indices,
    scatter_kept_weights as scatter_kept_weights,
)
