"""Gravure's version. The wheel's build reads it here, and nothing else states it."""

__version__ = "0.2.0"
