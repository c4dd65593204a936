"""A step of `compile_step`: its program, its optimizer, and what stays the same between calls.

For the public modules.
"""
