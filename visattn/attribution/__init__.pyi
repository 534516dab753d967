from .attention_based import (
    attention as attention,
    gradient_attention as gradient_attention,
    gradient_rollout as gradient_rollout,
    relevance as relevance,
    rollout as rollout,
)
from .cam import (
    activations_and_gradients as activations_and_gradients,
    gradcam as gradcam,
    gradcam_plus_plus as gradcam_plus_plus,
    layercam as layercam,
)
from .explained_model import (
    analyze_model as analyze_model,
    default_mean_std as default_mean_std,
)
from .gradient_based import (
    input_gradient as input_gradient,
    integrated_gradients as integrated_gradients,
    smoothgrad as smoothgrad,
)
from .layer_weights import (
    LayerWeights as LayerWeights,
    pooled_queries as pooled_queries,
    pooled_rows as pooled_rows,
    record_weights as record_weights,
    resolve_attention_layer as resolve_attention_layer,
    single_grid_error as single_grid_error,
    weights_and_gradients as weights_and_gradients,
)
from .methods import (
    METHODS as METHODS,
    Method as Method,
    get_method as get_method,
    supported_methods as supported_methods,
    unsupported_reason as unsupported_reason,
)
from .model_free import (
    center_maps as center_maps,
    edge_maps as edge_maps,
    itti_koch as itti_koch,
    random_maps as random_maps,
    spectral_residual_map as spectral_residual_map,
)
from .perturbation import (
    baseline_image as baseline_image,
    denormalize as denormalize,
    occlusion as occlusion,
    rise as rise,
)
from .targets import (
    CallableTarget as CallableTarget,
    ClassTarget as ClassTarget,
    DescribedTarget as DescribedTarget,
    NoTarget as NoTarget,
    evaluate_target as evaluate_target,
    probabilities as probabilities,
    resolve_target as resolve_target,
    target_values as target_values,
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
