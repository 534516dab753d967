from .location_policy import (
    LocationPolicy as LocationPolicy,
)
from .networks import (
    GlimpseNet as GlimpseNet,
)
from .networks import (
    GlimpseRNN as GlimpseRNN,
)
from .networks import (
    Retina as Retina,
)
from .ram import (
    RecurrentAttentionModel as RecurrentAttentionModel,
)
from .rollout import (
    Glimpse as Glimpse,
)
from .rollout import (
    GlimpseRollout as GlimpseRollout,
)
from .rollout import (
    gathered as gathered,
)
