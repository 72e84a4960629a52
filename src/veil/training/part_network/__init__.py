"""How the part network is trained and measured: labelled images, augmentation, losses, pixel counts and the trainer."""
