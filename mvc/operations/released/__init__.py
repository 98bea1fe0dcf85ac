"""What was released: the records, and what they mean for content that is missing or back."""
