from .backbones.loaded_model import (
    LoadedModel as LoadedModel,
)
from .backbones.timm_classifier import (
    TimmClassifier as TimmClassifier,
)
from .backbones.timm_encoder import (
    TimmEncoder as TimmEncoder,
)
from .base import (
    SPECIAL_TOKENS as SPECIAL_TOKENS,
)
from .captioner import (
    Captioner as Captioner,
)
from .captioning.adaptive_attention import (
    KnowingWhenToLook as KnowingWhenToLook,
)
from .captioning.ensemble import (
    CaptionerEnsemble as CaptionerEnsemble,
)
from .captioning.sequence_recognizer import (
    SequenceRecognizer as SequenceRecognizer,
)
from .captioning.show_attend_tell import (
    ShowAttendTell as ShowAttendTell,
)
from .captioning.transformer_captioner import (
    TransformerCaptioner as TransformerCaptioner,
)
from .classifier import (
    ImageClassifier as ImageClassifier,
)
from .dense import (
    DenseModel as DenseModel,
)
from .detection.detr import (
    DETR as DETR,
)
from .encoder import (
    ImageEncoder as ImageEncoder,
    SmallEncoder as SmallEncoder,
)
from .ram.dram import (
    DRAM as DRAM,
)
from .ram.glimpse_model import (
    GlimpseModel as GlimpseModel,
)
from .ram.ram import (
    RecurrentAttentionModel as RecurrentAttentionModel,
)
from .resnet.attention_resnet import (
    AttentionResNet as AttentionResNet,
)
from .segmentation.unet import (
    UNet as UNet,
)
from .serialization.config import (
    build_model as build_model,
    model_config as model_config,
)
from .swin.swin_transformer import (
    SwinTransformer as SwinTransformer,
    create_swin as create_swin,
)
from .text_classifier import (
    TextPromptClassifier as TextPromptClassifier,
)
from .vit.presets import (
    create_vit as create_vit,
)
from .vit.vision_transformer import (
    VisionTransformer as VisionTransformer,
)
from .vqa.cnn_mlp import (
    CNNMLP as CNNMLP,
)
from .vqa.cross_attention import (
    CrossAttentionVQA as CrossAttentionVQA,
)
from .vqa.hierarchical_coattention import (
    HierarchicalCoAttention as HierarchicalCoAttention,
)
from .vqa.mac import (
    MAC as MAC,
)
from .vqa.relation_network import (
    RelationNetwork as RelationNetwork,
)
from .vqa.stacked_attention import (
    StackedAttentionNetwork as StackedAttentionNetwork,
)
from .vqa_model import (
    VQAModel as VQAModel,
)
