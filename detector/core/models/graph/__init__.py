"""Building, converting and quantising ONNX graphs. No file format and no engine is known here."""
