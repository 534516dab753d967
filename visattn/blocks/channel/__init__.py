"""Channel attention: squeeze-and-excitation, ECA, GCT, global context, SRM."""
