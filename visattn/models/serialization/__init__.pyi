from .checkpoint import (
    Progress as Progress,
    read_checkpoint as read_checkpoint,
    read_model as read_model,
    read_progress as read_progress,
    read_recorded_score as read_recorded_score,
)
from .config import (
    build_model as build_model,
    build_with_weights as build_with_weights,
    check_config_fits as check_config_fits,
    model_config as model_config,
    restore_model as restore_model,
)
from .finite_weights import (
    all_finite as all_finite,
    check_weights_before_saving as check_weights_before_saving,
    format_names as format_names,
    nonfinite_weights as nonfinite_weights,
)
from .meta_shapes import (
    check_forward_memory as check_forward_memory,
    weight_shapes as weight_shapes,
)
from .safetensors_file import (
    read_safetensors as read_safetensors,
    write_safetensors as write_safetensors,
)
from .state_dict_mapping import (
    build_converted as build_converted,
    check_supported_options as check_supported_options,
    copy_state_dict as copy_state_dict,
    match_head as match_head,
    rename_key as rename_key,
    rename_keys as rename_keys,
    resolve_timm_model as resolve_timm_model,
)
from .state_dicts import (
    StateDict as StateDict,
    read_state_dict as read_state_dict,
    strip_prefix as strip_prefix,
)
from .torch_archives import (
    check_archive as check_archive,
    check_tensors as check_tensors,
    read_archive as read_archive,
)
from .weight_files import (
    check_loaded_weights as check_loaded_weights,
    check_memory as check_memory,
    open_safetensors as open_safetensors,
    require_local_file as require_local_file,
    summarize_shapes as summarize_shapes,
    tensor_shapes as tensor_shapes,
)
