from .huggingface import (
    huggingface_transform as huggingface_transform,
    load_huggingface_model as load_huggingface_model,
)
from .loaded_model import (
    LoadedModel as LoadedModel,
)
from .pretrained import (
    load_timm_model as load_timm_model,
    load_torchvision_model as load_torchvision_model,
    unique_names as unique_names,
)
from .timm_classifier import (
    TimmClassifier as TimmClassifier,
)
from .timm_encoder import (
    TimmEncoder as TimmEncoder,
    intermediate_output as intermediate_output,
    network_after as network_after,
)
from .timm_weights import (
    create_timm_backbone as create_timm_backbone,
    load_timm_weights as load_timm_weights,
    load_weights as load_weights,
)
from .user_code import (
    is_user_code as is_user_code,
    load_user_model as load_user_model,
    user_code_file as user_code_file,
)
