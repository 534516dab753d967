from .arguments import (
    complete_args as complete_args,
    expand_env_vars as expand_env_vars,
    option_values as option_values,
    resolve_configs as resolve_configs,
    validate_args as validate_args,
)
from .entry import (
    help_text as help_text,
)
from .lightning_cli import (
    TrainingCLI as TrainingCLI,
    silence_lightning as silence_lightning,
)
from .parser import (
    Parser as Parser,
    configure_jsonargparse as configure_jsonargparse,
    format_error as format_error,
    report_user_errors as report_user_errors,
)
from .score_table import (
    score_table as score_table,
)
from .trainer_checks import (
    check_trainer as check_trainer,
)
from .yaml_safety import (
    check_yaml as check_yaml,
    read_config as read_config,
)
