"""Where people are: detectors, the part network, tracks, templates; embeddings of faces and bodies."""
