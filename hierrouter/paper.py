"""The paper's settings that more than one room needs."""

from __future__ import annotations

PAPER_SCORER = "token_f1"  # Q, appendix C

PAPER_ALPHA = 0.005

PAPER_SEED = 42
