"""Latents: encoders, extraction, store, search, adapters and the heads that use features."""
