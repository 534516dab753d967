"""Bottom-up saliency: Itti-Koch and spectral residual."""
