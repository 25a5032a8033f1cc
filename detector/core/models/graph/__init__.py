"""Build, convert and quantise ONNX graphs, independently of file formats and engines."""
