"""Compilers and what drives them.

`governor` compiles within a memory budget: `admission` decides who may start, `admission_server`
speaks with the `launch` program that stands before each compiler and shares the cores, and
`memory_book` remembers what each file took. `cache` is the compiler cache, `accel` compiles many
files at once, `preload` has compilers ask the governor and use huge pages.

Programs of this room start for every file of a build, so nothing is imported here.
"""
