"""For those who write a storage, or want to see one fail: a suite of what it promises, and faults.

``contract`` needs pytest; nothing else of mvc imports it. Assertions tell more after
``pytest.register_assert_rewrite("mvc.storage.testing.contract")``.
"""
