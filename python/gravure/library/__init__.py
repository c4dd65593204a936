"""The C++ library: where it is found and loaded, its namespace of operators, what it logs through.

For everybody. It knows no other room, and nothing that is private of PyTorch's.
"""
