"""Data held by other libraries: lazy arrays, tables, labelled arrays, operators, rows that a program computes."""
