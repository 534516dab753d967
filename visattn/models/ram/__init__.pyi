from .dram import (
    DRAM as DRAM,
)
from .glimpse_model import (
    GlimpseModel as GlimpseModel,
    GlimpseState as GlimpseState,
)
from .location_policy import (
    LocationPolicy as LocationPolicy,
)
from .networks import (
    GlimpseNet as GlimpseNet,
    GlimpseRNN as GlimpseRNN,
    Retina as Retina,
    conv_encoder as conv_encoder,
)
from .ram import (
    RecurrentAttentionModel as RecurrentAttentionModel,
)
from .rollout import (
    Glimpse as Glimpse,
    GlimpseRollout as GlimpseRollout,
    stack_glimpses as stack_glimpses,
)
