"""A repository elsewhere: what its store holds, and what travels there and back.

A store holds packs, pack indexes and Git packs, all named by their content and never changed, and one
small object, the *root*, which names all of them and where the refs point. Who pushes writes what
is missing and then replaces the root, on condition that no one else has: all refs of a push move
together or not at all, and what the root does not name is garbage.
"""

from mvc.lazy import lazy_modules

__getattr__ = lazy_modules(__name__)
