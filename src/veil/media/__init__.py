"""Video in, video out: sources, sinks, atomic drafts, discovery of inputs, storage at URLs."""
