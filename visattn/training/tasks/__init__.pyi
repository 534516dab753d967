from .caption_eval import (
    CaptionEvalTask as CaptionEvalTask,
)
from .caption_generation import (
    CaptionWithMaps as CaptionWithMaps,
    encode_images as encode_images,
    generate_captions as generate_captions,
    reference_captions as reference_captions,
    teacher_force_batch as teacher_force_batch,
)
from .caption_scst import (
    SCSTTask as SCSTTask,
)
from .captioning import (
    CaptioningTask as CaptioningTask,
)
from .classification import (
    ClassificationTask as ClassificationTask,
)
from .glimpse import (
    GlimpseTask as GlimpseTask,
)
from .glimpse_diagnostics import (
    gradient_norms as gradient_norms,
    gradient_signal_to_noise as gradient_signal_to_noise,
    policy_diagnostics as policy_diagnostics,
)
from .glimpse_eval import (
    ErrorPerGlimpse as ErrorPerGlimpse,
    GlimpseEvaluator as GlimpseEvaluator,
    SequenceError as SequenceError,
    batch_centers as batch_centers,
    knows_centers as knows_centers,
    object_centers as object_centers,
)
from .glimpse_losses import (
    GlimpseLosses as GlimpseLosses,
    ValueBaseline as ValueBaseline,
    check_num_labels as check_num_labels,
    compute_glimpse_losses as compute_glimpse_losses,
    label_targets as label_targets,
    total_cross_entropy as total_cross_entropy,
)
from .glimpse_supervision import (
    digit_scanpaths as digit_scanpaths,
    supervised_policy_loss as supervised_policy_loss,
    supervised_rollout as supervised_rollout,
)
