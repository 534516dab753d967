from .backbones.module_classifier import (
    ModuleClassifier as ModuleClassifier,
)
from .backbones.text_models import (
    TextPromptClassifier as TextPromptClassifier,
)
from .backbones.timm_classifier import (
    TimmClassifier as TimmClassifier,
)
from .backbones.timm_encoder import (
    TimmEncoder as TimmEncoder,
)
from .base import (
    ImageClassifier as ImageClassifier,
    ImageEncoder as ImageEncoder,
    SmallEncoder as SmallEncoder,
)
from .captioning.captioner import (
    SPECIAL_TOKENS as SPECIAL_TOKENS,
    Captioner as Captioner,
)
from .captioning.knowing_when_to_look import (
    KnowingWhenToLook as KnowingWhenToLook,
)
from .captioning.sequence_recognizer import (
    SequenceRecognizer as SequenceRecognizer,
)
from .captioning.show_attend_tell import (
    ShowAttendTell as ShowAttendTell,
)
from .captioning.transformer import (
    TransformerCaptioner as TransformerCaptioner,
)
from .detr import (
    DETR as DETR,
)
from .glimpses.dram import (
    DRAM as DRAM,
)
from .glimpses.ram import (
    RecurrentAttentionModel as RecurrentAttentionModel,
)
from .resnet import (
    AttentionResNet as AttentionResNet,
)
from .unet import (
    UNet as UNet,
)
from .vit import (
    VisionTransformer as VisionTransformer,
)
from .vqa.cross_attention import (
    CrossAttentionVQA as CrossAttentionVQA,
)
from .vqa.mac import (
    MAC as MAC,
)
