"""`python -m aethermind.engine.process FD PARENT VERSION` is the process of one engine; `Child` starts it."""

import sys

from aethermind.engine.process.worker import main

sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
