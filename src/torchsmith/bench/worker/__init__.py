"""What runs inside the Pythons that are compared, never inside torchsmith.

Such a Python may be 3.8 and its torch 1.13: plain syntax, the standard library, no import from
torchsmith. `script.py` is started and answers requests; it loads the files beside it by path.
Each file of cases has `listed()`: group, name, suite, devices, and what makes the case. That
function gets torch and a device and returns what is to be called over and over; it raises
NotImplementedError where this torch lacks what the case needs.
"""
