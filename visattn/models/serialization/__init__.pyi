from .config import (
    build as build,
)
from .config import (
    check_fit as check_fit,
)
from .config import (
    describe as describe,
)
from .config import (
    restore as restore,
)
from .finite_weights import (
    all_finite as all_finite,
)
from .finite_weights import (
    check_weights as check_weights,
)
from .finite_weights import (
    list_names as list_names,
)
from .finite_weights import (
    nonfinite_weights as nonfinite_weights,
)
from .meta_shapes import (
    check_forward as check_forward,
)
from .meta_shapes import (
    outline as outline,
)
from .safetensors_file import (
    read_model as read_model,
)
from .safetensors_file import (
    write_model as write_model,
)
from .state_dict_mapping import (
    check_options as check_options,
)
from .state_dict_mapping import (
    head_names as head_names,
)
from .state_dict_mapping import (
    renamed as renamed,
)
from .state_dict_mapping import (
    renamed_key as renamed_key,
)
from .state_dict_mapping import (
    timm_network as timm_network,
)
from .state_dict_mapping import (
    weights_of as weights_of,
)
from .state_dicts import (
    StateDict as StateDict,
)
from .state_dicts import (
    read_state_dict as read_state_dict,
)
from .state_dicts import (
    without_prefix as without_prefix,
)
from .torch_archives import (
    check_archive as check_archive,
)
from .torch_archives import (
    check_tensors as check_tensors,
)
from .torch_archives import (
    read_archive as read_archive,
)
from .weight_files import (
    check_finite as check_finite,
)
from .weight_files import (
    check_room as check_room,
)
from .weight_files import (
    local_file as local_file,
)
from .weight_files import (
    opened_weights as opened_weights,
)
from .weight_files import (
    shapes_in as shapes_in,
)
from .weight_files import (
    some_shapes as some_shapes,
)
