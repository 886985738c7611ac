"""Tools that make and check the course's notebooks. `python -m minipaged.course.notebook_tools --help` lists them."""
