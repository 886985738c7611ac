"""Every picture of the course, always drawn the same way.

A block is a row of slots, each slot shows its token; a dark plate holds the physical number, a circle the
reference count. Every function returns a `Figure`: a PNG and a text with the same content.
"""

from minipaged.course.blocks import draw_block_table, draw_pool
from minipaged.course.canvas import STATES, Figure
from minipaged.course.charts import Table, draw_bars, draw_gantt, draw_lines
from minipaged.course.slots import draw_sequence, draw_slots, draw_spans

__all__ = [
    "STATES",
    "Figure",
    "Table",
    "draw_bars",
    "draw_block_table",
    "draw_gantt",
    "draw_lines",
    "draw_pool",
    "draw_sequence",
    "draw_slots",
    "draw_spans",
]
