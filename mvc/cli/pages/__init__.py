"""Reports as one page or one picture, drawn from what ``--json`` prints and nothing else.

A *page* is one HTML file that holds its style, script and data and asks no network for anything; a
*picture* is its overview as PNG. The script draws in the browser; what page and picture
share (colours, the cells of the heat map) is worked out here.
"""
