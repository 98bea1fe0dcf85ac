"""Are the ranks still the same? A rotating share of what they hold alike is digested and compared.

``checking`` is what a run has: ``Consistency``. What a rank holds and who holds the same is in ``held``, which
share is due in ``plan``, what is kept of it at a step in ``kept``. When digests differ, ``inquiry`` finds
where, knowing what legally differs, ``verdict`` says why, and ``reports`` says what to do.
"""
