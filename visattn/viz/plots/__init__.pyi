from .attention_stats import (
    plot_attention_stats as plot_attention_stats,
)
