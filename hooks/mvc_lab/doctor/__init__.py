"""What is wrong or slow in how ranks are connected: facts of every rank, rules that are data, a measured link.

``python -m mvc_lab.doctor`` is run by ``mvc doctor --distributed``, in each rank.
"""
