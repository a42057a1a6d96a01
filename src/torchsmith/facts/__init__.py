"""What is true of the world: releases, GPUs, toolkits, boards, systems, patches.

The data are the TOML files in ``data/``; ``models`` says what they may hold, ``files`` reads
them, ``ranges`` compares versions, and the other modules answer questions.
"""
