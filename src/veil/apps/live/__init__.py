"""`veil live`: a camera, a stream or a looped file, anonymized while it is watched."""
