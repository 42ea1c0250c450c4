"""`rank_work` is imported by name, here and in the processes of ranks."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
