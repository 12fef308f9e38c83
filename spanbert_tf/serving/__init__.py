"""Exports for TF Serving, ONNX Runtime and LiteRT."""
