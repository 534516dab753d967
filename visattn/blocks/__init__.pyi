from .additive import AdditiveAttention as AdditiveAttention
from .attention_gate import AttentionGate as AttentionGate
from .bam import BAM as BAM
from .base import (
    Block as Block,
)
from .botnet import BoTNetAttention as BoTNetAttention
from .cbam import CBAM as CBAM
from .coordinate import CoordinateAttention as CoordinateAttention
from .criss_cross import CrissCrossAttention as CrissCrossAttention
from .danet import DANet as DANet
from .double_attention import DoubleAttention as DoubleAttention
from .eca import ECA as ECA
from .gct import GCT as GCT
from .global_context import GlobalContext as GlobalContext
from .multi_head import MultiHeadAttention as MultiHeadAttention
from .non_local import NonLocal as NonLocal
from .scse import SCSE as SCSE
from .selective_kernel import SelectiveKernel as SelectiveKernel
from .simam import SimAM as SimAM
from .spatial_gate import (
    SpatialGate as SpatialGate,
    SpatialSE as SpatialSE,
)
from .spatial_transformer import SpatialTransformer as SpatialTransformer
from .split_attention import SplitAttention as SplitAttention
from .squeeze_excite import (
    EffectiveSE as EffectiveSE,
    SqueezeExcite as SqueezeExcite,
)
from .srm import SRM as SRM
from .tap import Tap as Tap
from .triplet import TripletAttention as TripletAttention

__all__: list[str]
