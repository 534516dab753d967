"""Object detection: DETR with anchor queries, deformable attention, denoising, two stages."""
