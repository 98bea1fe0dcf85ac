"""What goes in comes back: add, commit, remove and check out any file. (Taken; being written.)"""
