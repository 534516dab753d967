from .backbones.huggingface import (
    preprocessing as preprocessing,
)
from .backbones.huggingface import (
    transformers_model as transformers_model,
)
from .backbones.pretrained import (
    NamedModel as NamedModel,
)
from .backbones.pretrained import (
    close_matches as close_matches,
)
from .backbones.pretrained import (
    unique_names as unique_names,
)
from .backbones.timm_classifier import (
    TimmClassifier as TimmClassifier,
)
from .backbones.timm_encoder import (
    TimmEncoder as TimmEncoder,
)
from .backbones.timm_encoder import (
    output_of as output_of,
)
from .backbones.timm_encoder import (
    tail_after as tail_after,
)
from .backbones.timm_weights import (
    load_timm_weights as load_timm_weights,
)
from .backbones.timm_weights import (
    load_weights as load_weights,
)
from .backbones.timm_weights import (
    timm_backbone as timm_backbone,
)
from .backbones.user_code import (
    code_file as code_file,
)
from .backbones.user_code import (
    names_user_code as names_user_code,
)
from .backbones.user_code import (
    user_model as user_model,
)
from .captioner import (
    AttentionStep as AttentionStep,
)
from .captioner import (
    Captioner as Captioner,
)
from .captioner import (
    TeacherForcedOutput as TeacherForcedOutput,
)
from .captioning.show_attend_tell import (
    ShowAttendTell as ShowAttendTell,
)
from .captioning.show_attend_tell import (
    ShowAttendTellState as ShowAttendTellState,
)
from .classifier import (
    ImageClassifier as ImageClassifier,
)
from .classifier import (
    block_name as block_name,
)
from .encoder import (
    ImageEncoder as ImageEncoder,
)
from .encoder import (
    SmallEncoder as SmallEncoder,
)
from .normalization import (
    check_normalization as check_normalization,
)
from .normalization import (
    normalized as normalized,
)
from .ram.location_policy import (
    LocationPolicy as LocationPolicy,
)
from .ram.networks import (
    GlimpseNet as GlimpseNet,
)
from .ram.networks import (
    GlimpseRNN as GlimpseRNN,
)
from .ram.networks import (
    Retina as Retina,
)
from .ram.ram import (
    RecurrentAttentionModel as RecurrentAttentionModel,
)
from .ram.rollout import (
    Glimpse as Glimpse,
)
from .ram.rollout import (
    GlimpseRollout as GlimpseRollout,
)
from .ram.rollout import (
    gathered as gathered,
)
from .resnet.attention_resnet import (
    AttentionResNet as AttentionResNet,
)
from .resnet.attention_resnet import (
    Layout as Layout,
)
from .resnet.attention_resnet import (
    layout_of as layout_of,
)
from .resnet.units import (
    BasicUnit as BasicUnit,
)
from .resnet.units import (
    BottleneckUnit as BottleneckUnit,
)
from .resnet.units import (
    ZeroPadding as ZeroPadding,
)
from .resnet.units import (
    convolution as convolution,
)
from .serialization.config import (
    build as build,
)
from .serialization.config import (
    check_fit as check_fit,
)
from .serialization.config import (
    describe as describe,
)
from .serialization.config import (
    restore as restore,
)
from .serialization.finite_weights import (
    all_finite as all_finite,
)
from .serialization.finite_weights import (
    check_weights as check_weights,
)
from .serialization.finite_weights import (
    list_names as list_names,
)
from .serialization.finite_weights import (
    nonfinite_weights as nonfinite_weights,
)
from .serialization.meta_shapes import (
    check_forward as check_forward,
)
from .serialization.meta_shapes import (
    outline as outline,
)
from .serialization.safetensors_file import (
    read_model as read_model,
)
from .serialization.safetensors_file import (
    write_model as write_model,
)
from .serialization.state_dict_mapping import (
    check_options as check_options,
)
from .serialization.state_dict_mapping import (
    head_names as head_names,
)
from .serialization.state_dict_mapping import (
    renamed as renamed,
)
from .serialization.state_dict_mapping import (
    renamed_key as renamed_key,
)
from .serialization.state_dict_mapping import (
    timm_network as timm_network,
)
from .serialization.state_dict_mapping import (
    weights_of as weights_of,
)
from .serialization.state_dicts import (
    StateDict as StateDict,
)
from .serialization.state_dicts import (
    read_state_dict as read_state_dict,
)
from .serialization.state_dicts import (
    without_prefix as without_prefix,
)
from .serialization.torch_archives import (
    check_archive as check_archive,
)
from .serialization.torch_archives import (
    check_tensors as check_tensors,
)
from .serialization.torch_archives import (
    read_archive as read_archive,
)
from .serialization.weight_files import (
    check_finite as check_finite,
)
from .serialization.weight_files import (
    check_room as check_room,
)
from .serialization.weight_files import (
    local_file as local_file,
)
from .serialization.weight_files import (
    opened_weights as opened_weights,
)
from .serialization.weight_files import (
    shapes_in as shapes_in,
)
from .serialization.weight_files import (
    some_shapes as some_shapes,
)
from .swin.conversion import (
    timm_swin_model as timm_swin_model,
)
from .swin.conversion import (
    timm_swin_parts as timm_swin_parts,
)
from .swin.conversion import (
    torchvision_swin_parts as torchvision_swin_parts,
)
from .swin.hierarchical import (
    HierarchicalTransformer as HierarchicalTransformer,
)
from .vit.exchange import (
    ExchangeableClassifier as ExchangeableClassifier,
)
from .vit.from_dinov2 import (
    dinov2_parts as dinov2_parts,
)
from .vit.from_timm import (
    timm_parts as timm_parts,
)
from .vit.from_torchvision import (
    torchvision_parts as torchvision_parts,
)
from .vit.parts import (
    attention_kinds as attention_kinds,
)
from .vit.parts import (
    both as both,
)
from .vit.parts import (
    check_positions as check_positions,
)
from .vit.parts import (
    encoder_layers as encoder_layers,
)
from .vit.parts import (
    learned_places as learned_places,
)
from .vit.parts import (
    pool_layer as pool_layer,
)
from .vit.parts import (
    prefix_roles as prefix_roles,
)
from .vit.parts import (
    stem_layer as stem_layer,
)
from .vit.parts import (
    token_rotations as token_rotations,
)
from .vit.parts import (
    whole_size as whole_size,
)
from .vit.vision_transformer import (
    VisionTransformer as VisionTransformer,
)
