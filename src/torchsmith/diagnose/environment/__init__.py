"""What is wrong with an installed torch, and with what lies beside it.

`read` looks once, at files and into a process that imported torch; `examine` decides over that
value, and touches nothing.
"""
