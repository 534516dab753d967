from .location_policy import (
    LocationPolicy as LocationPolicy,
)
from .networks import (
    GlimpseNet as GlimpseNet,
    GlimpseRNN as GlimpseRNN,
    Retina as Retina,
)
from .ram import (
    RecurrentAttentionModel as RecurrentAttentionModel,
)
from .rollout import (
    Glimpse as Glimpse,
    GlimpseRollout as GlimpseRollout,
    stack_glimpses as stack_glimpses,
)
