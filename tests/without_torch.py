"""The beginning of a program in which PyTorch and what exports networks cannot be imported."""

WITHOUT_TORCH = """
import sys

class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "onnx", "onnxscript"):
            raise ImportError(f"{name} is forbidden")

sys.meta_path.insert(0, Forbidden())
"""
