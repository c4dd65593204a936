"""From FX graphs to program text (docs/program-text.md), and the file of inputs beside it.

For what makes programs: `calls`, `steps`, and `gravure.export`.
"""
