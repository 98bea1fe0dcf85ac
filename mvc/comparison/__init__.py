"""What differs between two models, in numbers and in words.

A *pair* is one tensor on both sides, found by path, name or identity. Its *statistics* are gathered
piece by piece and kept by the two identities; *verdicts* put them into words, and a *roll-up* sums
them by module.
"""
