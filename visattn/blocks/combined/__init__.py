"""Channel and spatial attention together: CBAM, BAM, coordinate attention, scSE, SimAM, triplet."""
