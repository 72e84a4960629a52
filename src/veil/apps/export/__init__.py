"""`veil export`: a learned anonymizer, or an adapter of features, as one ONNX file that needs no torch."""
