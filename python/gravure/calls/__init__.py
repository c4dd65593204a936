"""The programs of a graph of `torch.compile`: how they are made, chosen and called.

For `steps` and `titan`, whose programs are followed, reported and dropped like these, and for the
public modules.
"""
