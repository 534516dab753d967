from .botnet import (
    BoTNetAttention as BoTNetAttention,
)
from .criss_cross import (
    CrissCrossAttention as CrissCrossAttention,
)
from .danet import (
    DANet as DANet,
)
from .double_attention import (
    DoubleAttention as DoubleAttention,
)
from .non_local import (
    NonLocal as NonLocal,
)
