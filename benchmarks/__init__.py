"""One script for each figure in docs/benchmarks.md; each measures a peer in the same run."""

import importlib.util
import sys

# PyTorch and transformers import Triton where it is installed. Its LLVM and TensorFlow's cannot
# live in one process, which aborts. Where there is no TensorFlow, `torch.compile` needs it.
if importlib.util.find_spec("tensorflow"):
    sys.modules["triton"] = None
