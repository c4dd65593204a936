"""The programs of a graph of `torch.compile`, or of torchtitan's: made, chosen and called.

For `steps`, whose programs are followed, reported and dropped like these, and for the public
modules.
"""
