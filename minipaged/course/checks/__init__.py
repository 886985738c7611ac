"""The checks of the exercises, one module a month. `minipaged.course.framework` says how to write one."""
