"""`gravure::`, the namespace of our own operators, for those that Python defines."""

from __future__ import annotations

import torch

# Operators of it go with this object.
LIBRARY = torch.library.Library("gravure", "FRAGMENT")
