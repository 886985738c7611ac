"""Settings for every test and every notebook that is executed: the same surroundings each time.

Kernels inherit this environment. A learner's own progress is never touched.
"""

import os
import tempfile

_home = tempfile.TemporaryDirectory(prefix="minipaged-test-")
os.environ["MINIPAGED_HOME"] = _home.name
os.environ.pop("MINIPAGED_OUTCOMES", None)
