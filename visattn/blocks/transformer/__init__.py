"""Parts of vision transformers: attention, stems, MLPs, layers, pooling."""
