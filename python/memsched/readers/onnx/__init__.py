"""Models in the format ONNX, which become training steps."""
