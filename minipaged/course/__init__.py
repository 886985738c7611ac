"""The course: checks, hints and progress for the exercise notebooks, and the tools that build the notebooks.

A notebook needs two names only::

    from minipaged.course import check, hint

    check("2.1", num_blocks)      # passed, failed, not attempted, or error: one card; raises CheckFailed unless passed
    hint("2.1")                   # a question; then the rule; then pseudocode; then the solution
"""

from minipaged.course.checking import CheckFailed, check, hint
from minipaged.course.lesson import expected_error

__all__ = ["CheckFailed", "check", "expected_error", "hint"]
