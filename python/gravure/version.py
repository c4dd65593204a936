"""The one place of Gravure's version: the wheel's build reads it here."""

__version__ = "0.2.0"
