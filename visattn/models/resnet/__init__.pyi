from .attention_resnet import (
    AttentionResNet as AttentionResNet,
)
from .attention_resnet import (
    Layout as Layout,
)
from .attention_resnet import (
    layout_of as layout_of,
)
from .units import (
    BasicUnit as BasicUnit,
)
from .units import (
    BottleneckUnit as BottleneckUnit,
)
from .units import (
    ZeroPadding as ZeroPadding,
)
from .units import (
    convolution as convolution,
)
