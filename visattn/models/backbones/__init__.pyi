from .huggingface import (
    preprocessing as preprocessing,
)
from .huggingface import (
    transformers_model as transformers_model,
)
from .pretrained import (
    NamedModel as NamedModel,
)
from .pretrained import (
    close_matches as close_matches,
)
from .pretrained import (
    timm_model as timm_model,
)
from .pretrained import (
    torchvision_model as torchvision_model,
)
from .pretrained import (
    unique_names as unique_names,
)
from .timm_classifier import (
    TimmClassifier as TimmClassifier,
)
from .timm_encoder import (
    TimmEncoder as TimmEncoder,
)
from .timm_encoder import (
    output_of as output_of,
)
from .timm_encoder import (
    tail_after as tail_after,
)
from .timm_weights import (
    load_timm_weights as load_timm_weights,
)
from .timm_weights import (
    load_weights as load_weights,
)
from .timm_weights import (
    timm_backbone as timm_backbone,
)
from .user_code import (
    code_file as code_file,
)
from .user_code import (
    names_user_code as names_user_code,
)
from .user_code import (
    user_model as user_model,
)
