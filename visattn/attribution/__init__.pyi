from .attention_based import (
    attention as attention,
)
from .attention_based import (
    gradient_attention as gradient_attention,
)
from .attention_based import (
    gradient_rollout as gradient_rollout,
)
from .attention_based import (
    relevance as relevance,
)
from .attention_based import (
    rollout as rollout,
)
from .attention_rows import (
    LayerWeights as LayerWeights,
)
from .attention_rows import (
    asking_rows as asking_rows,
)
from .attention_rows import (
    chosen_layer as chosen_layer,
)
from .attention_rows import (
    one_grid_refusal as one_grid_refusal,
)
from .attention_rows import (
    pooled_rows as pooled_rows,
)
from .attention_rows import (
    weights_and_gradients as weights_and_gradients,
)
from .attention_rows import (
    weights_of as weights_of,
)
from .baselines import (
    center_maps as center_maps,
)
from .baselines import (
    edge_maps as edge_maps,
)
from .baselines import (
    random_maps as random_maps,
)
from .bottom_up import (
    itti_koch as itti_koch,
)
from .bottom_up import (
    unexpected_spectrum as unexpected_spectrum,
)
from .cam import (
    activations_and_gradients as activations_and_gradients,
)
from .cam import (
    gradcam as gradcam,
)
from .cam import (
    gradcam_plus_plus as gradcam_plus_plus,
)
from .cam import (
    layercam as layercam,
)
from .explained_model import (
    subject_of as subject_of,
)
from .explained_model import (
    usual_colors as usual_colors,
)
from .gradient_based import (
    input_gradient as input_gradient,
)
from .gradient_based import (
    integrated_gradients as integrated_gradients,
)
from .gradient_based import (
    smoothgrad as smoothgrad,
)
from .methods import (
    Method as Method,
)
from .methods import (
    close_names as close_names,
)
from .methods import (
    fitting as fitting,
)
from .methods import (
    method_of as method_of,
)
from .methods import (
    refusal_of as refusal_of,
)
from .perturbation import (
    colored as colored,
)
from .perturbation import (
    filled as filled,
)
from .perturbation import (
    occlusion as occlusion,
)
from .perturbation import (
    rise as rise,
)
from .target_scores import (
    answers as answers,
)
from .target_scores import (
    probabilities as probabilities,
)
from .target_scores import (
    target_values as target_values,
)
from .target_scores import (
    variants_at_once as variants_at_once,
)
from .targets import (
    CallableTarget as CallableTarget,
)
from .targets import (
    ClassTarget as ClassTarget,
)
from .targets import (
    KnownTarget as KnownTarget,
)
from .targets import (
    NoTarget as NoTarget,
)
from .targets import (
    target_of as target_of,
)
