"""`python -m aethermind.engine.process FD PARENT VERSION` is the process of one engine; `Child` starts it."""

import atexit
import os
import sys

exit_code = 1
"""The exit code of a process that an unexpected exception ends."""

# The first exit handler to be registered runs last. The system frees memory at once; the interpreter would
# do so object by object, and the next model of a server would wait for it.
atexit.register(lambda: os._exit(exit_code))

from aethermind.engine.process.worker import main  # noqa: E402

exit_code = main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
