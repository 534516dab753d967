from .eca import (
    ECA as ECA,
)
from .gct import (
    GCT as GCT,
)
from .global_context import (
    GlobalContext as GlobalContext,
)
from .squeeze_excite import (
    EffectiveSE as EffectiveSE,
    SqueezeExcite as SqueezeExcite,
)
from .srm import (
    SRM as SRM,
)
