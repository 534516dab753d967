from .attention_resnet import (
    AttentionResNet as AttentionResNet,
    ResNetLayout as ResNetLayout,
    resnet_layout as resnet_layout,
)
from .units import (
    BasicUnit as BasicUnit,
    BottleneckUnit as BottleneckUnit,
    ZeroPadShortcut as ZeroPadShortcut,
    create_conv as create_conv,
)
