from .atomic import (
    atomic_replace as atomic_replace,
    atomic_write as atomic_write,
    remove_partial_files as remove_partial_files,
)
from .bundled_models import (
    find_bundled_model as find_bundled_model,
    is_model_name as is_model_name,
    list_bundled_models as list_bundled_models,
)
from .config_files import (
    config_directory as config_directory,
    find_config as find_config,
    list_configs as list_configs,
)
from .hub import (
    HubName as HubName,
    download_file as download_file,
    parse_hub_name as parse_hub_name,
    plain_download_errors as plain_download_errors,
    upload_folder as upload_folder,
)
from .messages import (
    did_you_mean as did_you_mean,
    format_names as format_names,
    user_code_location as user_code_location,
)
from .run_directory import (
    checkpoint_run as checkpoint_run,
    find_run as find_run,
    run_checkpoint as run_checkpoint,
    run_config as run_config,
)
from .safe_arrays import (
    read_array as read_array,
)
from .safe_paths import (
    SafeDirectory as SafeDirectory,
    check_relative_path as check_relative_path,
    walk_files as walk_files,
)
from .safe_text import (
    decode_utf8 as decode_utf8,
    decompress_gzip as decompress_gzip,
    element_text as element_text,
    open_regular_file as open_regular_file,
    parse_json as parse_json,
    parse_xml as parse_xml,
    paused_garbage_collection as paused_garbage_collection,
    printable_name as printable_name,
    read_bytes_bounded as read_bytes_bounded,
    short_repr as short_repr,
)
from .trusted_modules import (
    is_trusted_module as is_trusted_module,
    parse_module_names as parse_module_names,
    user_trusted_modules as user_trusted_modules,
)
