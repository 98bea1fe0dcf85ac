"""The restricted pickle machine of torch files: builds inert values, imports nothing."""
