"""All that is private of PyTorch's, each name with what it is for and what happens without it.

For every other room: none of them reaches into PyTorch's private modules itself. It knows nothing
of programs; of this package it uses `library` and `errors`.
"""
