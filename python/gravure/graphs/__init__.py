"""FX graphs: how they are traced and cut, what is changed in them, what is known of their nodes.

For `text`, which writes them, and all that comes behind it. It knows nothing of program text.
"""
