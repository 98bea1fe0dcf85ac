from support.remote_repos import asked, linked, store

__all__ = ["asked", "linked", "store"]
