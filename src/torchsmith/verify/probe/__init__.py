"""What runs inside the Python that is verified, never inside torchsmith.

That Python may be 3.5 and its torch 1.0: plain syntax, the standard library, no import from
torchsmith. `script.py` is started; it loads the files beside it by path.
"""
