"""ONNX graphs, read without onnx."""
