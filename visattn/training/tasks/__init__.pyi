from .caption_eval import (
    CaptionEvalTask as CaptionEvalTask,
)
from .caption_generation import (
    CaptionWithMaps as CaptionWithMaps,
)
from .caption_generation import (
    features as features,
)
from .caption_generation import (
    generated as generated,
)
from .caption_generation import (
    given as given,
)
from .caption_generation import (
    read as read,
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
from .glimpse import (
    check_options as check_options,
)
from .glimpse_diagnostics import (
    gradient_norms as gradient_norms,
)
from .glimpse_diagnostics import (
    gradient_signal as gradient_signal,
)
from .glimpse_diagnostics import (
    policy_figures as policy_figures,
)
from .glimpse_eval import (
    ErrorPerGlimpse as ErrorPerGlimpse,
)
from .glimpse_eval import (
    GlimpseEvaluator as GlimpseEvaluator,
)
from .glimpse_eval import (
    known_centers as known_centers,
)
from .glimpse_losses import (
    GlimpseLosses as GlimpseLosses,
)
from .glimpse_losses import (
    ValueBaseline as ValueBaseline,
)
from .glimpse_losses import (
    losses_of_looks as losses_of_looks,
)
