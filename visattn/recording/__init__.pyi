from .attention_call import (
    AttentionCall as AttentionCall,
)
from .attention_call import (
    fused_call as fused_call,
)
from .attention_map import (
    AttentionMap as AttentionMap,
)
from .attention_map import (
    shortened as shortened,
)
from .feature_layers import (
    feature_site as feature_site,
)
from .feature_layers import (
    layer_name as layer_name,
)
from .feature_layers import (
    resizes_images as resizes_images,
)
from .feature_pooling import (
    PooledFeatures as PooledFeatures,
)
from .feature_pooling import (
    pooled_features as pooled_features,
)
from .frozen_model import (
    asked as asked,
)
from .frozen_model import (
    evaluating as evaluating,
)
from .frozen_model import (
    frozen as frozen,
)
from .gradient_graph import (
    GradientGraph as GradientGraph,
)
from .gradient_graph import (
    edge_of as edge_of,
)
from .gradient_graph import (
    extent as extent,
)
from .gradient_graph import (
    keeps_rows as keeps_rows,
)
from .gradient_graph import (
    mixes as mixes,
)
from .grid_probe import (
    GridProbe as GridProbe,
)
from .image_marks import (
    Agreement as Agreement,
)
from .image_marks import (
    agreement as agreement,
)
from .image_marks import (
    marked_images as marked_images,
)
from .image_marks import (
    responses as responses,
)
from .image_marks import (
    silent as silent,
)
from .input_size import (
    checked_size as checked_size,
)
from .input_size import (
    class_names as class_names,
)
from .input_size import (
    own_size as own_size,
)
from .input_size import (
    size_hint as size_hint,
)
from .layer_place import (
    first_tensor as first_tensor,
)
from .layer_place import (
    lies_on_grid as lies_on_grid,
)
from .layer_place import (
    measured_site as measured_site,
)
from .layer_place import (
    on_grid as on_grid,
)
from .marked_probe import (
    AttentionTokens as AttentionTokens,
)
from .marked_probe import (
    MarkedReader as MarkedReader,
)
from .marked_probe import (
    MarkedReading as MarkedReading,
)
from .marked_probe import (
    grids_of as grids_of,
)
from .marked_probe import (
    lie_on as lie_on,
)
from .model_info import (
    AttentionLayer as AttentionLayer,
)
from .model_info import (
    ExplainedModel as ExplainedModel,
)
from .model_info import (
    FeatureSite as FeatureSite,
)
from .model_info import (
    ModelInfo as ModelInfo,
)
from .model_info import (
    card_table as card_table,
)
from .model_outputs import (
    OutputLayout as OutputLayout,
)
from .model_outputs import (
    class_scores as class_scores,
)
from .model_outputs import (
    described_output as described_output,
)
from .model_outputs import (
    output_layout as output_layout,
)
from .module_calls import (
    ModuleCall as ModuleCall,
)
from .module_calls import (
    ModuleCalls as ModuleCalls,
)
from .module_calls import (
    TrackedWeights as TrackedWeights,
)
from .module_calls import (
    dry as dry,
)
from .module_calls import (
    first_image as first_image,
)
from .module_calls import (
    is_dry as is_dry,
)
from .module_calls import (
    is_foreign as is_foreign,
)
from .module_calls import (
    is_place as is_place,
)
from .multihead import (
    asked_of as asked_of,
)
from .multihead import (
    hide as hide,
)
from .multihead import (
    multihead_call as multihead_call,
)
from .multihead import (
    multihead_output as multihead_output,
)
from .multihead import (
    unhide as unhide,
)
from .probe import (
    ModelProbe as ModelProbe,
)
from .probe import (
    ProbeResult as ProbeResult,
)
from .probe import (
    TokenPlace as TokenPlace,
)
from .probe_cache import (
    Classifying as Classifying,
)
from .probe_cache import (
    features_of as features_of,
)
from .probe_cache import (
    forward_of as forward_of,
)
from .probe_cache import (
    reading_of as reading_of,
)
from .probe_cache import (
    roles_of as roles_of,
)
from .recorder import (
    Recording as Recording,
)
from .recorder import (
    record as record,
)
from .scored_run import (
    ModuleOutput as ModuleOutput,
)
from .scored_run import (
    ScoredRun as ScoredRun,
)
from .scored_run import (
    scored_run as scored_run,
)
from .select import (
    check_runs_hooks as check_runs_hooks,
)
from .select import (
    chosen_sites as chosen_sites,
)
from .select import (
    perhaps_chosen as perhaps_chosen,
)
from .third_party import (
    RecordedWeights as RecordedWeights,
)
from .third_party import (
    ThirdPartyRecorder as ThirdPartyRecorder,
)
from .token_grid import (
    block_of as block_of,
)
from .token_grid import (
    coded as coded,
)
from .token_grid import (
    fits as fits,
)
from .token_grid import (
    grid_of as grid_of,
)
from .token_grid import (
    holds_numbers as holds_numbers,
)
from .token_grid import (
    in_order as in_order,
)
from .token_grid import (
    numbers_in as numbers_in,
)
from .token_grid import (
    split_tokens as split_tokens,
)
from .token_grid import (
    windows_of as windows_of,
)
from .torch_function import (
    AttentionListener as AttentionListener,
)
from .torch_function import (
    Interception as Interception,
)
from .torch_function import (
    sums_to_one as sums_to_one,
)
from .user_errors import (
    raised_at as raised_at,
)
from .vision_tower import (
    vision_config as vision_config,
)
from .vision_tower import (
    vision_tower as vision_tower,
)
