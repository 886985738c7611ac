"""What the lesson of Month 1 asks at its beginning."""

DRIVING_QUESTION = (
    "Ten programs share one memory. Each uses addresses from 0 upwards and believes that it is alone; none can say how "
    "much it will need. What would you need to make this work? Name at least three mechanisms."
)
DRIVING_ANSWERS = (
    "A translation between the address a program uses and the place in memory: a table for each program.",
    "Pieces of one fixed size, so that any free piece serves any request.",
    "A fault when a piece is missing, so that it can be brought in when it is used, and not before.",
    "A rule for who leaves when memory is full, and a place (disk) to keep what left.",
    "Permission bits and reference counts, so that two programs can share a piece and one write makes a copy.",
    "Bonus: a small cache of translations, because the table would be read at every access.",
)
