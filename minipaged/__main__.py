"""`python -m minipaged …` is the command `minipaged …`."""

import sys

from minipaged.cli import main

sys.exit(main())
