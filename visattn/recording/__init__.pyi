from .attention_call import (
    AttentionCall as AttentionCall,
    disable_torch_function as disable_torch_function,
    functional_multihead_call as functional_multihead_call,
    multihead_arguments as multihead_arguments,
    multihead_call as multihead_call,
    multihead_output as multihead_output,
    restore_torch_function as restore_torch_function,
    sdpa_call as sdpa_call,
)
from .attention_map import (
    AttentionMap as AttentionMap,
    truncate_text as truncate_text,
)
from .bottleneck import (
    bottleneck_layer as bottleneck_layer,
)
from .changed_attention import (
    read_by_change as read_by_change,
)
from .checkpointing import (
    without_checkpointing as without_checkpointing,
)
from .dense_outputs import (
    ImageDetections as ImageDetections,
    query_boxes as query_boxes,
    query_logits as query_logits,
    read_detections as read_detections,
    segmentation_logits as segmentation_logits,
)
from .feature_layers import (
    find_module_name as find_module_name,
    first_tensor as first_tensor,
    has_layout as has_layout,
    measure_feature_layer as measure_feature_layer,
    resizes_images as resizes_images,
    resolve_feature_layer as resolve_feature_layer,
    to_grid as to_grid,
)
from .feature_pooling import (
    GradientRun as GradientRun,
    PooledFeatures as PooledFeatures,
    RecordedOutput as RecordedOutput,
    find_pooled_features as find_pooled_features,
    find_reading as find_reading,
    run_with_gradients as run_with_gradients,
)
from .frozen_model import (
    eval_mode as eval_mode,
    frozen as frozen,
    with_grad as with_grad,
)
from .full_precision import (
    in_float32 as in_float32,
)
from .gradient_graph import (
    GradientGraph as GradientGraph,
    edge_shape as edge_shape,
    gradient_edge as gradient_edge,
    inputs_of as inputs_of,
    is_product as is_product,
    is_rectifier as is_rectifier,
    node_kind as node_kind,
    num_positions as num_positions,
    preserves_rows as preserves_rows,
)
from .heatmap_png import (
    heatmap_png as heatmap_png,
)
from .inner_inputs import (
    ColorMap as ColorMap,
    received_colors as received_colors,
)
from .internal_resize import (
    internal_geometry as internal_geometry,
    internal_transform as internal_transform,
)
from .key_sources import (
    KeySource as KeySource,
    KeySources as KeySources,
    is_attention_softmax as is_attention_softmax,
)
from .model_config import (
    configured_image_size as configured_image_size,
    input_size_hint as input_size_hint,
    own_image_size as own_image_size,
    parse_class_names as parse_class_names,
    parse_image_size as parse_image_size,
    takes_clips as takes_clips,
    vision_config as vision_config,
    vision_tower as vision_tower,
)
from .model_info import (
    AttentionLayer as AttentionLayer,
    ExplainedModel as ExplainedModel,
    FeatureLayer as FeatureLayer,
    ModelInfo as ModelInfo,
    ReadRows as ReadRows,
    TextScorer as TextScorer,
    describe_scores as describe_scores,
    format_model_info as format_model_info,
)
from .model_outputs import (
    OutputLayout as OutputLayout,
    class_scores as class_scores,
    describe_output as describe_output,
    detect_output_layout as detect_output_layout,
    output_tensors as output_tensors,
)
from .module_calls import (
    ModuleCall as ModuleCall,
    ModuleCallStack as ModuleCallStack,
    TrackedWeights as TrackedWeights,
    first_image_batch as first_image_batch,
    is_probing as is_probing,
    is_third_party as is_third_party,
    may_compute_attention as may_compute_attention,
    probing as probing,
)
from .operations import (
    RECTIFIERS as RECTIFIERS,
    SMOOTH_ACTIVATIONS as SMOOTH_ACTIVATIONS,
    ModelOperations as ModelOperations,
    OperationRecorder as OperationRecorder,
    model_operations as model_operations,
    rectifiers_error as rectifiers_error,
)
from .probe import (
    ModelProbe as ModelProbe,
    ObservedTokens as ObservedTokens,
    ProbeResult as ProbeResult,
)
from .probe_cache import (
    NormalizingClassifier as NormalizingClassifier,
    forward_function as forward_function,
    prefix_tokens_of as prefix_tokens_of,
    probe_model as probe_model,
    probe_pooled_features as probe_pooled_features,
)
from .quadrant_probe import (
    AttentionTokens as AttentionTokens,
    GridAlignment as GridAlignment,
    QuadrantProbe as QuadrantProbe,
    QuadrantProbeResult as QuadrantProbeResult,
    candidate_grids as candidate_grids,
    grid_alignment as grid_alignment,
    is_grid as is_grid,
    quadrant_images as quadrant_images,
    squared_deviations as squared_deviations,
    tokens_aligned as tokens_aligned,
    unresponsive as unresponsive,
)
from .query_attention import (
    QueryAttention as QueryAttention,
    SampledPoints as SampledPoints,
    overlaps as overlaps,
    record_queries as record_queries,
)
from .read_rows import (
    AttentionTracer as AttentionTracer,
    GradientEverywhere as GradientEverywhere,
    Reading as Reading,
    RowReader as RowReader,
    TracedCall as TracedCall,
    as_read_rows as as_read_rows,
    mean_of_images as mean_of_images,
    shares_of_rows as shares_of_rows,
)
from .recorder import (
    Recording as Recording,
    check_supports_hooks as check_supports_hooks,
    record as record,
    select_known_layers as select_known_layers,
    select_layers as select_layers,
)
from .reused_outputs import (
    ReusedOutputs as ReusedOutputs,
)
from .rounding import (
    Rounding as Rounding,
)
from .score_evidence import (
    declared_class_counts as declared_class_counts,
    ends_in_sigmoid as ends_in_sigmoid,
    features_reason as features_reason,
    last_computed as last_computed,
)
from .third_party import (
    RecordedWeights as RecordedWeights,
    ThirdPartyRecorder as ThirdPartyRecorder,
)
from .token_grid import (
    GridProbe as GridProbe,
    covers as covers,
    decode_indices as decode_indices,
    encode_indices as encode_indices,
    encodes_indices as encodes_indices,
    fits as fits,
    infer_grid as infer_grid,
    is_sequential as is_sequential,
    rectangular_window_size as rectangular_window_size,
    split_prefix_tokens as split_prefix_tokens,
    windows_per_image as windows_per_image,
)
from .torch_function import (
    AttentionInterceptor as AttentionInterceptor,
    AttentionListener as AttentionListener,
    sums_to_one as sums_to_one,
)
from .word_rows import (
    WordRows as WordRows,
    call_site as call_site,
    largest_score as largest_score,
    row_tolerance as row_tolerance,
)
