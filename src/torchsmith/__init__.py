"""torchsmith: from a recipe to the PyTorch you need."""

__version__ = "0.1.0"
