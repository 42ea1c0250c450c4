"""What the forkserver becomes when it preloads this module; nothing else may import it.

Its import is its work. The forkserver then dies with the command that started it (Linux), and its
ranks with the forkserver: no orphans, in whatever step the command is killed. A signal that a
terminal or a scheduler sends to everybody is for the command alone, which asks the ranks to stop.
Then PyTorch is imported, no operation run.
"""

import signal

from elinvar.data.worker import FOR_THE_PARENT
from elinvar.run import worker

worker.die_with_parent()
for _number in FOR_THE_PARENT:
    signal.signal(_number, signal.SIG_IGN)
# Blocked since the command started this process, for the time before the lines above.
signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_PARENT)
