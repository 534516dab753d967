from .caption_eval import (
    CaptionEvalTask as CaptionEvalTask,
)
from .caption_generation import (
    CaptionWithMaps as CaptionWithMaps,
)
from .caption_generation import (
    encode_images as encode_images,
)
from .caption_generation import (
    generate_captions as generate_captions,
)
from .caption_generation import (
    reference_captions as reference_captions,
)
from .caption_generation import (
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
)
from .glimpse_diagnostics import (
    gradient_signal_to_noise as gradient_signal_to_noise,
)
from .glimpse_diagnostics import (
    policy_diagnostics as policy_diagnostics,
)
from .glimpse_eval import (
    ErrorPerGlimpse as ErrorPerGlimpse,
)
from .glimpse_eval import (
    GlimpseEvaluator as GlimpseEvaluator,
)
from .glimpse_eval import (
    object_centers as object_centers,
)
from .glimpse_losses import (
    GlimpseLosses as GlimpseLosses,
)
from .glimpse_losses import (
    ValueBaseline as ValueBaseline,
)
from .glimpse_losses import (
    compute_glimpse_losses as compute_glimpse_losses,
)
