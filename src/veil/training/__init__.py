"""The one training loop, losses, recipes (TOML to dataclass), run folders and training data."""
