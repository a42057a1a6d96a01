"""Recipe + facts + host -> a resolution with a reason for every choice, or every conflict.

Pure: nothing here runs a program, reads a file of the user's, a clock or the environment.
"""
