"""Heat maps, contours, legends and comparisons."""
