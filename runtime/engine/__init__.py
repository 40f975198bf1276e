"""Sessions of onnxruntime, the states of a decoder, and one step."""
