from .attention_based import (
    attention as attention,
    combine_layers as combine_layers,
    gradient_attention as gradient_attention,
    gradient_rollout as gradient_rollout,
    included_layers as included_layers,
    relevance as relevance,
    rollout as rollout,
)
from .attention_flow import (
    attention_flow as attention_flow,
)
from .bound_targets import (
    BoundBox as BoundBox,
    BoundPixel as BoundPixel,
    BoundQuery as BoundQuery,
    BoundRegion as BoundRegion,
    BoundTarget as BoundTarget,
)
from .cam import (
    activations_and_gradients as activations_and_gradients,
    eigencam as eigencam,
    gradcam as gradcam,
    gradcam_plus_plus as gradcam_plus_plus,
    hirescam as hirescam,
    layercam as layercam,
    xgradcam as xgradcam,
)
from .channel_perturbation import (
    ablationcam as ablationcam,
    scorecam as scorecam,
)
from .dense_targets import (
    BoxTarget as BoxTarget,
    DenseTarget as DenseTarget,
    PixelTarget as PixelTarget,
    QueryTarget as QueryTarget,
    RegionTarget as RegionTarget,
    TokenTarget as TokenTarget,
)
from .drise import (
    drise as drise,
)
from .explained_model import (
    analyze_model as analyze_model,
    describe_model as describe_model,
    read_by_target as read_by_target,
)
from .gradient_based import (
    input_gradient as input_gradient,
    input_x_gradient as input_x_gradient,
    integrated_gradients as integrated_gradients,
    smoothgrad as smoothgrad,
)
from .layer_outputs import (
    LayerCalls as LayerCalls,
    intercept_layer as intercept_layer,
    layer_activations as layer_activations,
)
from .layer_weights import (
    LayerWeights as LayerWeights,
    check_have_gradients as check_have_gradients,
    describe_read_rows as describe_read_rows,
    read_shares as read_shares,
    record_weights as record_weights,
    resolve_attention_layer as resolve_attention_layer,
    single_grid_error as single_grid_error,
    weights_and_gradients as weights_and_gradients,
    with_query_axis as with_query_axis,
)
from .legrad import (
    NO_TEXTS as NO_TEXTS,
    legrad as legrad,
    similarity as similarity,
)
from .methods import (
    METHODS as METHODS,
    NEEDS_FEATURES as NEEDS_FEATURES,
    Method as Method,
    get_method as get_method,
    supported_methods as supported_methods,
    unsupported_reason as unsupported_reason,
)
from .model_defaults import (
    ModelDefaults as ModelDefaults,
    default_mean_std as default_mean_std,
    model_defaults as model_defaults,
)
from .model_free import (
    center_maps as center_maps,
    edge_maps as edge_maps,
    itti_koch as itti_koch,
    random_maps as random_maps,
    spectral_residual_map as spectral_residual_map,
)
from .modified_backward import (
    fullgrad as fullgrad,
    guided_backprop as guided_backprop,
)
from .perturbation import (
    baseline_image as baseline_image,
    denormalize as denormalize,
    occlusion as occlusion,
    rise as rise,
)
from .pyramid import (
    pyramid_activations_and_gradients as pyramid_activations_and_gradients,
    pyramid_map as pyramid_map,
    resample_level as resample_level,
)
from .regions import (
    box_text as box_text,
    boxes_to_image as boxes_to_image,
    cell_visibility as cell_visibility,
    check_box as check_box,
    mask_from_runs as mask_from_runs,
    mask_on_grid as mask_on_grid,
    mask_to_runs as mask_to_runs,
    sample_at as sample_at,
    visible_point as visible_point,
)
from .residual_blocks import (
    BlockChain as BlockChain,
    block_names as block_names,
    copies_for_head as copies_for_head,
    replaced_last_block as replaced_last_block,
    split_output as split_output,
)
from .targets import (
    BatchedTarget as BatchedTarget,
    CallableTarget as CallableTarget,
    ClassTarget as ClassTarget,
    DescribedTarget as DescribedTarget,
    NoTarget as NoTarget,
    check_one_per_image as check_one_per_image,
    probabilities as probabilities,
    resolve_class_index as resolve_class_index,
    resolve_target as resolve_target,
    target_values as target_values,
)
from .variants import (
    VariantScorer as VariantScorer,
    evaluate_target as evaluate_target,
    images_per_batch as images_per_batch,
    images_per_gradient_batch as images_per_gradient_batch,
    variant_scorer as variant_scorer,
    variants_per_batch as variants_per_batch,
)
from .words import (
    WORD_GRADIENT_METHODS as WORD_GRADIENT_METHODS,
    TokenVectors as TokenVectors,
    WordGradients as WordGradients,
    WordLayer as WordLayer,
    WordRun as WordRun,
    word_attention as word_attention,
    word_attributions as word_attributions,
    word_gradients as word_gradients,
)
