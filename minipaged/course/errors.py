"""The errors of the course. Each message says what is wrong and what to do."""


class CourseError(ValueError):
    """Something about the course's own set-up or a call to it is wrong: an unknown exercise, a missing notebook."""
