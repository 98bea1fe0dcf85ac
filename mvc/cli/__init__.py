"""The only part that talks to people."""
