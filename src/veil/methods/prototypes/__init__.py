"""Action prototypes, Veil's own method: a video is replaced by the mean video of its action; equations are in `recipe`."""
