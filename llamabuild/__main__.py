"""``python -m llamabuild``."""

import sys

from llamabuild.cli import main

sys.exit(main())
