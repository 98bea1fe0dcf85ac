"""The frozen copy of the live state: one copy, into memory that is used again and again."""
