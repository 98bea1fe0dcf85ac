"""Which sample comes when: pure functions of a seed and a position, without any state or I/O."""
