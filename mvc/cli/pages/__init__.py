"""Reports as pages, drawn from what ``--json`` prints and nothing else.

A *page* is one HTML file that holds its style, script and data and asks no network for anything. The
script draws in the browser; the cells of the heat map and the figures of the overview are worked out here.
"""
