"""A resolution becomes a plan: typed steps with inputs, environment, commands, outputs, a key.

Pure: the same resolution gives the same bytes on any machine. ``build`` makes the plan,
``render`` writes it down for people who do not have torchsmith.
"""
